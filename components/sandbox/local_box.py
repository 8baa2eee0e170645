"""Boxes of this machine's kernel: descriptors go to their first processes and come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from components.errors import FaultCause, InfraFault
from components.sandbox import proxy
from components.sandbox.box import OPERATION_S, TIMEOUT_GRACE_S, VIEW_ENVIRONMENT, Box, Command, Life
from components.sandbox.capture import PipeCapture
from components.sandbox.channel import Channel
from components.sandbox.contract import REPORT_BYTES, REPORT_FD, SECRET_FD, ExecResult, Left, Remains, SandboxSpec
from components.sandbox.line import LocalLine
from components.sandbox.proxy import BoxProxy
from components.sandbox.store import BASE_SYSTEMS, ImageStore, Stack
from components.sandbox.zygote import userland, wire

if TYPE_CHECKING:
    from components.sandbox.backend import ZygoteBackend


@dataclass
class LocalLife(Life):
    """One living box: its name in the zygote, the channel to its first process, and its end.

    Attributes:
        oom_kills: how many of its programs the kernel has killed for memory; `oom_seen` of them are told.
        reached_limit: whether that can have been for its own limit.
    """

    name: str
    channel: Channel
    gone: asyncio.Future[None]
    stack: Stack
    oom_kills: Callable[[], int] = lambda: 0
    reached_limit: Callable[[], bool] = lambda: True
    oom_seen: int = 0
    proxy: BoxProxy | None = None

    @property
    def exchange(self) -> Channel:
        return self.channel

    @property
    def image_env(self) -> Mapping[str, str]:
        return {} if self.stack.base is None else self.stack.base.env

    @property
    def env(self) -> Mapping[str, str]:
        return {} if self.proxy is None else proxy.environment()

    async def run(self, command: Command) -> ExecResult:
        out = PipeCapture(command.max_output_bytes)
        err = None if command.merge_stderr else PipeCapture(command.max_output_bytes)
        report = None if command.secret is None else PipeCapture(REPORT_BYTES)
        places = {1: out.write, 2: out.write if err is None else err.write}
        if command.stdin is not None:
            places[0] = wire.memory_file(command.stdin)
        if command.secret is not None and report is not None:
            places |= {REPORT_FD: report.write, SECRET_FD: _read_once(command.secret)}
        number = self.channel.next_id()
        reply = self.channel.expect(number)
        unstarted: ExecResult | None = None
        answer: wire.Body = {}
        try:
            try:
                self.channel.post({**command.request(number), "places": list(places)}, list(places.values()))
            finally:
                for fd in {*places.values()}:
                    os.close(fd)
            answer, _ = await self.channel.reply(reply, command.argv[0], command.timeout_s + TIMEOUT_GRACE_S)
        except OSError as error:
            unstarted = command.not_started(error)
        finally:
            output = out.finish()
            stderr = None if err is None else err.finish()
            said = b"" if report is None else report.finish()
            flooded = report is not None and report.kept.dropped > 0
            if flooded:  # a report with a hole says what is not so
                said = b""
        kills = self.oom_kills()
        oom, self.oom_seen = kills > self.oom_seen, kills
        if oom and not self.reached_limit():
            why = f"box {self.name}: the kernel killed a program for memory that what is around the box lacks"
            raise InfraFault(FaultCause.SANDBOX, why)
        if unstarted is not None:
            return replace(unstarted, oom=oom)
        late = bool(answer["timed_out"])
        dropped = out.kept.dropped + (0 if err is None else err.kept.dropped)
        return ExecResult(None if late else int(answer["exit"]), output, stderr, late, dropped > 0, oom, said, flooded)

    async def write(self, packed: bytes) -> None:
        blob = wire.memory_file(packed)
        try:
            await self.channel.request({"op": "put"}, [blob], timeout_s=OPERATION_S)
        finally:
            os.close(blob)

    async def read(self, path: str, max_bytes: int) -> bytes:
        blob = os.memfd_create("longshell")
        try:
            await self.channel.request({"op": "get", "path": path, "limit": max_bytes}, [blob], timeout_s=OPERATION_S)
            return wire.read_file(blob)
        finally:
            os.close(blob)

    async def open_line(self, request: dict[str, Any]) -> LocalLine:
        _, (master,) = await self.channel.request(request, timeout_s=OPERATION_S)
        return LocalLine(master)


def _read_once(secret: bytes) -> int:
    """The reading end of a pipe that holds a secret: what has been read from it is nowhere any more."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(writing, secret)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    os.set_blocking(reading, True)
    return reading


async def save(life: LocalLife, store: ImageStore, key: str, below: Stack, *, shift: int | None) -> Stack:
    """Save the files of a box whose programs have ended; to be called while `making` the layer."""
    said, folders = await life.channel.request({"op": "layers"}, timeout_s=OPERATION_S)
    try:
        uppers = dict(zip(said["names"], folders, strict=True))
        return await asyncio.to_thread(store.save, key, below, uppers, shift=shift)
    finally:
        for folder in folders:
            os.close(folder)


class LocalBox(Box[LocalLife]):
    """A started box.

    Args:
        base: the box whose system it is laid over, where that is not its stack's.
        release: is called when it is stopped.
    """

    def __init__(
        self,
        backend: ZygoteBackend,
        spec: SandboxSpec,
        life: LocalLife,
        *,
        base: str | None = None,
        release: Callable[[], None] = lambda: None,
        extra_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        name = f"{backend.lease}.{life.name}"
        super().__init__(spec, life, name=name, isolation=backend.isolation, extra_environment=extra_environment)
        self._backend = backend
        self._base = base
        self._release = release

    async def fork_view(self) -> LocalView:
        said = await self._end()
        left = Left(tuple(said["changed"]), tuple(said["doubtful"]), tuple(said["ended"]))
        spec = replace(self._spec, network=self._spec.view_network)
        life = await self._backend.launch(spec, self._life.stack, system=self._base, over=self._life.name)
        return LocalView(self._backend, self._spec, life, left, base=self._base)

    async def snapshot(self) -> str:
        await self._end()
        return await self._backend.save_snapshot(self._life, self._base)

    async def _renew(self, life: LocalLife) -> LocalLife:
        return await self._backend.start_life(self._spec, life.stack, self._base)

    async def _finish(self, life: LocalLife) -> None:
        await self._backend.end(life)

    async def stop(self) -> None:
        if not self._stopped:
            self._release()
        await super().stop()


class LocalView(LocalBox):
    """A fresh box over another's files; see the protocol `View`."""

    def __init__(
        self, backend: ZygoteBackend, spec: SandboxSpec, life: LocalLife, left: Left, *, base: str | None = None
    ) -> None:
        super().__init__(backend, spec, life, base=base, extra_environment=VIEW_ENVIRONMENT)
        self.left = left
        self._user = ""  # the verifier is root's, whoever the agent was
        self.shell = userland.VIEW_SHELL if backend.isolation == "namespace/root" else "/bin/bash"
        self.networked = spec.view_network != "none"

    async def seal(self, *paths: str, system: bool = False) -> None:
        base = self._life.stack.base
        systems = (BASE_SYSTEMS if base is None else base.systems) if system else ()
        try:
            await self._backend.seal(self._life, [*paths, *(f"/{name}" for name in systems)])
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: {error}") from error

    async def finish(self, since: int | None) -> Remains:
        said = await self._end(last=True, since=since, folders=[])
        return Remains(tuple(said["ended"]), tuple(said["since"]), tuple(said["late"]))

    async def reset(self) -> None:
        raise ValueError("a view cannot be reset: fork another")
