"""A leg's sandboxes on several nodes of a Ray cluster; here each node is a raylet of this machine."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from components.config import CampaignConfig, load
from components.errors import InfraFault
from components.jobs.hosts import open_hosts
from components.sandbox import SandboxSpec
from components.sandbox.host import Hosts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
SMALL = SandboxSpec(memory_mb=128, disk_mb=16, pids=64)


@pytest.fixture
def cluster(ray_token: Path) -> Iterator[Any]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    ray.init(address=made.address, logging_level="warning")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def config() -> CampaignConfig:
    return load(MINIATURE, ["rollout.per_node=2", "rollout.reattach_s=60"])


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder whose path is short, and that boxes can reach."""
    with tempfile.TemporaryDirectory(prefix="longshell-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _hosts(state: Path, node: str = "") -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    found = [
        each for each in every if any(part.startswith(f"{state}/node-{node}") for part in each.info["cmdline"] or [])
    ]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def test_boxes_are_spread_under_a_cap_and_a_lost_node_costs_those_that_it_had(
    cluster: Any, config: CampaignConfig, state: Path
) -> None:
    async def play() -> None:
        hosts = await open_hosts(config, state)
        boxes = [await hosts.start(SMALL) for _ in range(4)]
        assert sorted(hosts.boxes.values()) == [2, 2]
        waiting = asyncio.create_task(hosts.start(SMALL))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "both nodes are full"
        lost = next(node for node in hosts.boxes if node != ray.get_runtime_context().get_node_id())
        cluster.remove_node(next(node for node in cluster.list_all_nodes() if node.node_id == lost))
        for process in _hosts(state, lost[:12]):  # the machine is gone with all that ran on it
            process.kill()
        runs = (box.exec(["echo", "hi"], timeout_s=30) for box in boxes)
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        assert Counter(isinstance(outcome, InfraFault) for outcome in outcomes) == {True: 2, False: 2}
        assert list(hosts.boxes.values()) == [2]
        await next(
            box for box, outcome in zip(boxes, outcomes, strict=True) if not isinstance(outcome, InfraFault)
        ).stop()
        assert (await (await waiting).exec(["echo", "hi"], timeout_s=30)).output == b"hi\n"
        await hosts.close()

    asyncio.run(play())
    _, alive = psutil.wait_procs(_hosts(state), 10)
    assert alive == []


def test_the_next_owner_finds_the_boxes_of_every_node(cluster: Any, config: CampaignConfig, state: Path) -> None:
    async def begin() -> set[str]:
        hosts = await open_hosts(config, state)
        begun = {(await hosts.start(SMALL)).id for _ in range(3)}
        for host in hosts._hosts.values():  # the owner lives on here: its connections end as a killed one's would
            host._link.close("killed")
            await host._link._writer.wait_closed()
        return begun

    async def go_on() -> Hosts:
        hosts = await open_hosts(config, state)
        assert sorted(hosts.boxes.values()) == [1, 2]
        held = set(hosts.held)
        for name in held:
            await hosts.discard(name)
        assert sorted(hosts.boxes.values()) == [0, 0]
        await hosts.close()
        return held

    begun = asyncio.run(begin())
    ray.shutdown()  # the owner's end is that of its actors
    ray.init(address=cluster.address, logging_level="warning")
    assert asyncio.run(go_on()) == begun
    assert list(state.glob("node-*")) == []
