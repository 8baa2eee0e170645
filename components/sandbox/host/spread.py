"""The boxes of several hosts as one backend: a cap a node, and nodes that may be lost.

Invariant: a box counts on its node from before it is asked for until it has ended. A node whose host is gone is lost:
whoever has a box there gets an InfraFault, which the scheduler counts and tries elsewhere, and no box is asked of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from components.errors import FaultCause, InfraFault
from components.sandbox.contract import SandboxSpec
from components.sandbox.host.client import CallLog, HostBackend, HostBox
from components.sandbox.host.placement import Placement
from components.sandbox.host.wire import HeldBox

log = logging.getLogger(__name__)


class Hosts:
    """Hosts by the names of their nodes; see the protocol `SandboxBackend`. There is one at least.

    Args:
        per_node: the most boxes of a node; whoever asks for more waits. None: as many as are asked for.
    """

    def __init__(self, hosts: Mapping[str, HostBackend], per_node: int | None) -> None:
        first = next(iter(hosts.values()))
        self.name, self.isolation = first.name, first.isolation
        self._hosts = dict(hosts)
        self._placement = Placement(per_node)
        self._changed = asyncio.Event()
        self._closing = False
        self._nodes: dict[str, str] = {}
        """Of the boxes that earlier owners left."""
        for node, host in hosts.items():
            self._placement.join(node, len(host.held))
            self._nodes |= dict.fromkeys(host.held, node)
            host.on_lost(partial(self._lose, node))

    @property
    def held(self) -> dict[str, HeldBox]:
        """The boxes that earlier owners left, by id."""
        return {name: box for host in self._hosts.values() for name, box in host.held.items()}

    @property
    def boxes(self) -> dict[str, int]:
        """How many boxes each node has."""
        return self._placement.boxes

    @property
    def counts(self) -> Mapping[str, float]:
        """See `SandboxBackend`: the sums over all hosts."""
        names = {name for host in self._hosts.values() for name in host.counts}
        return {name: sum(host.counts.get(name, 0.0) for host in self._hosts.values()) for name in sorted(names)}

    async def start(self, spec: SandboxSpec) -> HostBox:
        return await self.start_logged(spec, None)

    async def start_logged(self, spec: SandboxSpec, calls: CallLog | None) -> HostBox:
        """A started box whose calls are in a log; where the log has one already, that one."""
        known = None if calls is None else calls.recall("start")
        if calls is not None and known is not None:
            if (place := self._nodes.get(known)) not in self._placement.boxes or place is None:
                raise InfraFault(FaultCause.SANDBOX, f"box {known} is gone")
            return self._hosts[place].held_box(known, calls, partial(self._give, place))
        node = await self._take()
        try:
            box = await self._hosts[node].start_logged(spec, calls, partial(self._give, node))
        except BaseException:
            self._give(node)
            raise
        if calls is not None:
            try:
                calls.note("start", box.id)
            except BaseException:
                await box.stop()
                raise
        return box

    async def discard(self, name: str) -> None:
        """Ends a box that was left and that nobody goes on with."""
        node = self._nodes.pop(name)
        try:
            await self._hosts[node].discard(name)
        finally:
            self._give(node)

    async def forget(self, snapshot: str) -> None:
        await asyncio.gather(*(host.forget(snapshot) for host in self._hosts.values()))

    async def close(self) -> None:
        """Ends every host, and every box with it. Idempotent."""
        self._closing = True
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    async def _take(self) -> str:
        while True:
            if (node := self._placement.take()) is not None:
                return node
            if not self._placement.boxes:
                raise InfraFault(FaultCause.SANDBOX, "no sandbox host is left")
            self._changed.clear()
            await self._changed.wait()

    def _give(self, node: str) -> None:
        self._placement.give(node)
        self._changed.set()

    def _lose(self, node: str, reason: str) -> None:
        if self._closing:
            return
        log.warning("the sandboxes of %s are lost (%s): %d boxes", node, reason, self._placement.lose(node))
        self._changed.set()


class LoggedBackend:
    """The backend of one trial, all of whose calls are in its log."""

    def __init__(self, hosts: Hosts, calls: CallLog) -> None:
        self.name, self.isolation = hosts.name, hosts.isolation
        self._hosts, self._calls = hosts, calls

    async def start(self, spec: SandboxSpec) -> HostBox:
        return await self._hosts.start_logged(spec, self._calls)

    @property
    def counts(self) -> Mapping[str, float]:
        return self._hosts.counts

    async def forget(self, snapshot: str) -> None:
        await self._hosts.forget(snapshot)

    async def close(self) -> None:
        """The hosts are not this trial's to close."""
