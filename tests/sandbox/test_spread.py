"""Boxes on several nodes: where they start, and what becomes of them when a node is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from components.config import SandboxConfig
from components.errors import InfraFault
from components.sandbox.host import HostBackend, Hosts, claim, open_place, required, wire
from components.sandbox.host.placement import Placement
from tests.sandbox.conftest import SMALL
from tests.sandbox.test_host import end_of, hosts

CAP = 3
NODES = st.sampled_from(["a", "b", "c", "d"])


class Placed(RuleBasedStateMachine):
    """Nodes that join and are lost, boxes that start and end, against a list of boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.placement = Placement(CAP)
        self.boxes: list[str] = []
        self.nodes: set[str] = set()
        self.lost: list[str] = []
        """Boxes of nodes that were lost, of whose end may be told."""

    @rule(node=NODES, boxes=st.integers(0, CAP + 2))
    def join(self, node: str, boxes: int) -> None:
        if node not in self.nodes:
            self.placement.join(node, boxes)
            self.nodes.add(node)
            self.boxes += [node] * boxes
            self.lost = [box for box in self.lost if box != node]

    @rule(node=NODES)
    def lose(self, node: str) -> None:
        assert self.placement.lose(node) == self.boxes.count(node)
        self.lost += [box for box in self.boxes if box == node]
        self.boxes = [box for box in self.boxes if box != node]
        self.nodes.discard(node)

    @rule()
    def start(self) -> None:
        node = self.placement.take()
        if node is None:
            assert all(self.boxes.count(each) >= CAP for each in self.nodes)
        else:
            assert self.boxes.count(node) == min(self.boxes.count(each) for each in self.nodes) < CAP
            self.boxes.append(node)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.boxes or self.lost:
            box = data.draw(st.sampled_from([*self.boxes, *self.lost]))
            self.placement.give(box)
            (self.boxes if box in self.boxes else self.lost).remove(box)

    @invariant()
    def every_box_is_counted(self) -> None:
        assert self.placement.boxes == {node: self.boxes.count(node) for node in self.nodes}


TestPlaced = Placed.TestCase
TestPlaced.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


async def host_at(folder: Path) -> HostBackend:
    """A host that is reached over a port, as that of another node is."""
    place = await open_place(folder, machine="127.0.0.1")
    address = await place.start(SandboxConfig(), folder, 60)
    assert address.port > 0
    return required(await claim(address, SandboxConfig(), place.release), address)


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_a_lost_node_costs_its_boxes_and_the_next_start_on_those_that_are_left(state_dir: Path) -> None:
    folders = {name: state_dir / name for name in ("one", "two")}
    spread = Hosts({name: await host_at(folder) for name, folder in folders.items()}, per_node=2)
    boxes = [await spread.start(SMALL) for _ in range(4)]
    assert spread.boxes == {"one": 2, "two": 2}
    fifth = asyncio.create_task(spread.start(SMALL))
    await asyncio.sleep(0.3)
    assert not fifth.done(), "every node is full"
    (process,) = hosts(folders["two"])
    process.kill()
    outcomes = await asyncio.gather(*(box.exec(["echo", "hi"], timeout_s=20) for box in boxes), return_exceptions=True)
    assert sorted(isinstance(outcome, InfraFault) for outcome in outcomes) == [False, False, True, True]
    assert spread.boxes == {"one": 2}
    for box, outcome in zip(boxes, outcomes, strict=True):
        if isinstance(outcome, InfraFault):
            with pytest.raises(InfraFault):
                await box.stop()
    alive = [box for box, outcome in zip(boxes, outcomes, strict=True) if not isinstance(outcome, InfraFault)]
    await alive[0].stop()
    assert (await (await fifth).exec(["echo", "hi"], timeout_s=20)).output == b"hi\n"
    assert spread.boxes == {"one": 2}
    await spread.close()
    await end_of(folders["one"])


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_who_does_not_know_the_token_is_not_heard(state_dir: Path) -> None:
    folder = state_dir / "guarded"
    place = await open_place(folder, machine="127.0.0.1")
    address = await place.start(SandboxConfig(), folder, 60)
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    writer.write(bytes(wire.NONCE_BYTES + wire.PROOF_BYTES) + wire.pack(wire.Call(1, wire.HOST, "claim")))
    assert len(await reader.read()) == wire.NONCE_BYTES + wire.PROOF_BYTES
    writer.close()
    host = required(await claim(address, SandboxConfig(), place.release), address)
    assert (await (await host.start(SMALL)).exec(["echo", "hi"], timeout_s=20)).output == b"hi\n"
    await host.close()
