"""The owner's side of a sandbox host: a backend whose boxes are elsewhere.

Invariants: as of every backend: a call ends, with its answer or with InfraFault, and once the host is gone everything
fails with the same reason. A box or a view whose asker was cancelled before its answer came is ended. What a box's
terminals answer is in the trial's log, where it has one, before anybody acts on it; where the log has an answer
already, from an earlier owner, nothing is asked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from components.errors import FaultCause, InfraFault
from components.sandbox.contract import GET_BYTES, OUTPUT_BYTES, ExecResult, Left, Remains, SandboxSpec
from components.sandbox.host.wire import (
    HOST,
    SILENCE_SLICES,
    SLICE_S,
    Answer,
    Call,
    Cancel,
    HeldBox,
    Message,
    Pulse,
    Told,
    beat,
    pack,
    receive,
)
from components.sandbox.image import FileEntry, normal_path, read_tree

log = logging.getLogger(__name__)


MAKES = frozenset({"start", "fork_view"})
"""Calls whose answer begins with the number of what lives from then on, until it is stopped."""


class CallLog(Protocol):
    """What the calls of one trial's box were answered, in order."""

    def recall(self, name: str) -> Any | None:
        """The next answer of an earlier process, of a call of this name; None where there is none any more."""

    def note(self, name: str, answer: Any) -> None:
        """Keeps an answer, which is made of plain values."""


class Link:
    """A connection to a host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._making: set[int] = set()
        """Calls under way that make something; who has asked may be gone when the answer comes."""
        self._fault: InfraFault | None = None
        self.on_close: Callable[[str], None] = lambda reason: None
        """Hears why the connection has closed."""
        self._pulse = Pulse()
        self._ended = asyncio.Event()
        self._tasks = [asyncio.create_task(work) for work in (self._read(), self._watch(), beat(self._writer))]

    async def call(self, target: int, name: str, *arguments: Any, number: int = 0, **options: Any) -> Any:
        """What a method of a target gives.

        Raises:
            InfraFault: its own, or the host is gone.
            OSError: the box's own.
        """
        if self._fault is not None:
            raise InfraFault(self._fault.cause, self._fault.detail)
        identity = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[identity] = future
        if name in MAKES:
            self._making.add(identity)
        self._writer.write(pack(Call(identity, target, name, arguments, options, number)))
        try:
            return await future
        except asyncio.CancelledError:
            if self._pending.pop(identity, None) is not None and self._fault is None:
                self._writer.write(pack(Cancel(identity)))
            elif name in MAKES and future.done() and not future.cancelled() and future.exception() is None:
                self._unmake(future.result()[0])
            raise

    def _unmake(self, target: int) -> None:
        """Nobody has what a call has made."""
        if self._fault is None:
            self._writer.write(pack(Call(next(self._ids), HOST, "stop", (target,))))

    async def ended(self) -> None:
        """Until the host has closed the connection."""
        await self._ended.wait()

    def close(self, reason: str) -> None:
        """Whoever waits gets the reason. Idempotent."""
        if self._fault is not None:
            return
        self._fault = InfraFault(FaultCause.SANDBOX, reason)
        self._writer.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._fault)
                future.exception()  # whoever still awaits it sees it; nobody else must
        self._pending.clear()
        self._ended.set()
        self.on_close(reason)

    async def _read(self) -> None:
        while (message := await receive(self._reader)) is not None:
            self._pulse.heard()
            self._take(message)
        self.close("the sandbox host is gone")

    def _take(self, message: Message) -> None:
        if isinstance(message, Told):
            log.log(message.level, "%s", message.text)
        elif isinstance(message, Answer):
            self._answer(message)

    def _answer(self, answer: Answer) -> None:
        future = self._pending.pop(answer.id, None)
        makes = answer.id in self._making
        self._making.discard(answer.id)
        if future is None or future.done():
            if makes and answer.error is None:
                self._unmake(answer.value[0])
        elif answer.error is None:
            future.set_result(answer.value)
        else:
            future.set_exception(answer.error)

    async def _watch(self) -> None:
        await self._pulse.lost()
        self.close(f"the sandbox host has said nothing for {SILENCE_SLICES * SLICE_S:g} s")


class HostBackend:
    """Boxes of a host that this process owns; see the protocol `SandboxBackend`.

    Attributes:
        held: the boxes that an earlier owner left, by id.
    """

    def __init__(self, link: Link, claim: Mapping[str, Any], released: Callable[[], Awaitable[None]]) -> None:
        self.name: str = claim["name"]
        self.isolation: str = claim["isolation"]
        self.held: dict[str, HeldBox] = {box.id: box for box in claim["boxes"]}
        self._link = link
        self._counts: dict[str, float] = claim["counts"]
        self._released = released

    async def start(self, spec: SandboxSpec) -> HostBox:
        return await self.start_logged(spec, None, lambda: None)

    async def start_logged(self, spec: SandboxSpec, calls: CallLog | None, ended: Callable[[], None]) -> HostBox:
        """A started box, whose terminals keep their calls in a log. `ended` hears of its end."""
        target, name, isolation, self._counts = await self._link.call(HOST, "start", spec)
        return HostBox(self._link, target, name, isolation, calls, ended)

    def held_box(self, name: str, calls: CallLog, ended: Callable[[], None]) -> HostBox:
        """A box that an earlier owner left, whose terminals are in a log."""
        held = self.held[name]
        return HostBox(self._link, held.target, name, held.isolation, calls, ended)

    async def discard(self, name: str) -> None:
        """Ends a box that was left and that nobody goes on with."""
        await self._link.call(HOST, "stop", self.held[name].target)

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """`tell` hears why the host is gone, once it is."""
        self._link.on_close = tell

    @property
    def counts(self) -> Mapping[str, float]:
        """See `SandboxBackend`; as of the last start."""
        return self._counts

    async def forget(self, snapshot: str) -> None:
        await self._link.call(HOST, "forget", snapshot)

    async def close(self) -> None:
        """Ends the host, and every box with it. Idempotent; a host that is gone has ended."""
        try:
            await self._link.call(HOST, "close")
            await self._link.ended()
        except InfraFault:  # it was closed before, or it is gone
            self._link.close("the backend was closed")
        await self._released()


class HostTerminal:
    """A terminal in a box of a host; see the protocol `Terminal`. `alive` is as of the last call."""

    def __init__(self, link: Link, target: int, alive: bool, calls: CallLog | None) -> None:
        self.alive = alive
        self._link, self._target, self._calls = link, target, calls
        self._number = 0

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self._number += 1
        if self._calls is not None and (known := self._calls.recall(name)) is not None:
            value, self.alive = known
            return value
        value, self.alive = await self._link.call(self._target, name, *arguments, number=self._number, **options)
        if self._calls is not None:
            self._calls.note(name, [value, self.alive])
        return value

    async def send(self, keystrokes: str) -> None:
        await self._call("send", keystrokes)

    async def settle(self, duration_s: float, *, at_prompt: bool) -> bool:
        return bool(await self._call("settle", duration_s, at_prompt=at_prompt))

    async def new_output(self) -> str:
        return str(await self._call("new_output"))

    async def capture(self) -> tuple[str, ...]:
        return tuple(await self._call("capture"))

    async def screen(self) -> str:
        return str(await self._call("screen"))

    async def close(self) -> None:
        self.alive = False
        await self._link.call(self._target, "close")


class HostBox:
    """A box of a host; see the protocol `Sandbox`."""

    def __init__(
        self,
        link: Link,
        target: int,
        name: str,
        isolation: str,
        calls: CallLog | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = name
        self.isolation = isolation
        self._link, self._target, self._calls, self._ended = link, target, calls, ended
        self._stopped = False

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return await self._link.call(self._target, name, *arguments, **options)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        max_output_bytes: int = OUTPUT_BYTES,
        merge_stderr: bool = True,
        secret: bytes | None = None,
        user: str | None = None,
    ) -> ExecResult:
        result: ExecResult = await self._call(
            "exec",
            list(argv),
            timeout_s=timeout_s,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
            max_output_bytes=max_output_bytes,
            merge_stderr=merge_stderr,
            secret=secret,
            user=user,
        )
        return result

    async def put(self, files: Mapping[str, FileEntry | bytes]) -> None:
        await self._call("put", dict(files))

    async def put_tree(self, source: Path, target: str) -> None:
        entries = await asyncio.to_thread(read_tree, source, target)
        await self.put({normal_path(target): FileEntry(b"", 0o755, "directory"), **entries})

    async def get(self, path: str, *, max_bytes: int = GET_BYTES) -> bytes:
        return bytes(await self._call("get", path, max_bytes=max_bytes))

    async def terminal(self, *, rows: int, columns: int, echo: bool, prompt: str = "$ ") -> HostTerminal:
        if self._calls is not None and (known := self._calls.recall("terminal")) is not None:
            target, alive = known
            return HostTerminal(self._link, target, alive, self._calls)
        target, alive = await self._call("terminal", rows=rows, columns=columns, echo=echo, prompt=prompt)
        if self._calls is not None:
            self._calls.note("terminal", [target, alive])
        return HostTerminal(self._link, target, alive, self._calls)

    async def end_processes(self) -> None:
        await self._call("end_processes")

    async def fork_view(self) -> HostView:
        target, name, left, shell, networked = await self._call("fork_view")
        return HostView(self._link, target, name, self.isolation, left, shell, networked)

    async def snapshot(self) -> str:
        return str(await self._call("snapshot"))

    async def reset(self) -> None:
        await self._call("reset")

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            await self._link.call(HOST, "stop", self._target)
        finally:
            self._ended()


class HostView(HostBox):
    """A view of a box of a host; see the protocol `View`."""

    def __init__(
        self, link: Link, target: int, name: str, isolation: str, left: Left, shell: str, networked: bool
    ) -> None:
        super().__init__(link, target, name, isolation)
        self.left = left
        self.shell = shell
        self.networked = networked

    async def seal(self, *paths: str, system: bool = False) -> None:
        await self._call("seal", *paths, system=system)

    async def finish(self, since: int | None) -> Remains:
        remains: Remains = await self._call("finish", since)
        return remains

    async def reset(self) -> None:
        raise ValueError("a view cannot be reset: fork another")
