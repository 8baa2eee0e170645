"""The process that boxes live in when they are to outlive their owner.

Invariants: it has one owner at a time, and the next is not heard before the last one's connection has closed and what
it had under way has ended. A counted call is executed once: an owner that asks again, because the one before it died
before it heard, gets the answer of the first time. Without an owner for `linger_s` seconds it ends, with every box.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from components.errors import FaultCause, InfraFault
from components.sandbox.contract import Sandbox, SandboxBackend, Terminal, View
from components.sandbox.host.wire import (
    HOST,
    Answer,
    Call,
    Cancel,
    HeldBox,
    Message,
    Pulse,
    Told,
    beat,
    greeted,
    pack,
    receive,
)

log = logging.getLogger(__name__)

FIRST_OWNER_S = 60.0
TOKEN_S = 30.0
BOX_CALLS = frozenset({"exec", "put", "get", "end_processes", "snapshot", "reset", "seal", "finish"})
"""What is passed on to a box or a view as it is."""
TERMINAL_CALLS = frozenset({"send", "settle", "new_output", "capture", "screen"})


@dataclass
class _Terminal:
    terminal: Terminal
    calls: int = 0
    asked: tuple[Any, ...] = ()
    last: asyncio.Task[tuple[Any, bool]] | None = None


@dataclass
class _Box:
    box: Sandbox
    terminals: dict[int, _Terminal] = field(default_factory=dict)
    views: dict[int, View] = field(default_factory=dict)
    pristine: bool = True
    over: bool = False
    """A terminal was closed, or its processes were ended."""
    ended: tuple[str, ...] = ()
    """What still ran when its processes were ended first: an owner that grades anew is told again."""


class Host:
    """Serves the boxes of one backend.

    Args:
        settings: what it was started with; an owner that wants others sees it.
        linger_s: how long it waits for the next owner.
        untold: lines of the log that no owner was told.
        token: what an owner shows first that it knows, where anybody can connect.
    """

    def __init__(
        self, backend: SandboxBackend, settings: str, linger_s: float, untold: deque[Told], token: bytes = b""
    ) -> None:
        self._backend = backend
        self._token = token
        self._settings = settings
        self._linger_s = linger_s
        self._untold = untold
        self._boxes: dict[int, _Box] = {}
        self._last_target = HOST
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._leaving = False

    async def serve(self, listener: socket.socket) -> None:
        """One owner after another, until one closes the host or none comes."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        patience_s, since = FIRST_OWNER_S, loop.time()
        closed: bool | None = None
        try:
            while not closed:
                if closed is False:  # who is no owner prolongs nothing
                    patience_s, since = self._linger_s, loop.time()
                connection = await _comes(listener, since + patience_s)
                if connection is not None:
                    closed = await self._owned(connection)
                if connection is None or (closed is None and loop.time() > since + patience_s):
                    log.warning("no owner came within %g s: %d boxes end", patience_s, len(self._boxes))
                    return
        finally:
            await self._backend.close()

    def tell(self) -> None:
        """Tells the owner, if there is one, what it was not told of the log."""
        while self._writer is not None and self._untold:
            self._send(self._untold.popleft())

    async def _owned(self, connection: socket.socket) -> bool | None:
        """Until the owner is gone; True when it closed the host, None when it was none."""
        reader, writer = await asyncio.open_connection(sock=connection)
        if not await _greeted(reader, writer, self._token):
            writer.close()
            return None
        self._writer = writer
        self.tell()
        pulse = Pulse()
        watching = [asyncio.create_task(self._watch(pulse, writer)), asyncio.create_task(beat(writer))]
        try:
            closing = await self._hear(reader, pulse)
            await self._abandon()
            if closing is not None:
                await self._backend.close()
                self._send(Answer(closing.id))
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
        finally:
            for task in watching:
                task.cancel()
            writer.close()
            self._writer = None
        return closing is not None

    async def _hear(self, reader: asyncio.StreamReader, pulse: Pulse) -> Call | None:
        """Begins what the owner asks for, until it is gone, or asks for the end."""
        while (message := await receive(reader)) is not None:
            pulse.heard()
            if isinstance(message, Cancel):
                if (unwanted := self._answers.get(message.id)) is not None:
                    unwanted.cancel()
            elif isinstance(message, Call) and (message.target, message.name) == (HOST, "close"):
                return message
            elif isinstance(message, Call):
                self._begin(message)
        return None

    @staticmethod
    async def _watch(pulse: Pulse, writer: asyncio.StreamWriter) -> None:
        await pulse.lost()
        log.warning("an owner that is silent is taken for gone")
        writer.transport.abort()

    async def _abandon(self) -> None:
        """Ends what the owner had under way, but what its terminals were told, and every view."""
        self._leaving = True
        answers = list(self._answers.values())
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        views = [view for held in self._boxes.values() for view in held.views.values()]
        for outcome in await asyncio.gather(*(view.stop() for view in views), return_exceptions=True):
            if isinstance(outcome, Exception):
                log.warning("a view did not end: %s", outcome)
        for held in self._boxes.values():
            held.views.clear()
        self._leaving = False

    def _begin(self, call: Call) -> None:
        answer = asyncio.create_task(self._answer(call))
        self._answers[call.id] = answer
        answer.add_done_callback(lambda _: self._answers.pop(call.id, None))

    async def _answer(self, call: Call) -> None:
        """The boundary at which a call's failure becomes its answer."""
        try:
            answer = Answer(call.id, await self._do(call))
        except Exception as error:
            answer = Answer(call.id, error=error)
        self._send(answer)

    async def _do(self, call: Call) -> Any:
        if call.target == HOST:
            return await self._of_host(call)
        for target, held in self._boxes.items():
            if call.target == target:
                return await self._of_box(held, call)
            if call.target in held.terminals:
                held.over |= call.name == "close"
                return await self._of_terminal(held.terminals[call.target], call)
            if call.target in held.views:
                return await self._of_view(held, held.views[call.target], call)
        raise InfraFault(FaultCause.SANDBOX, f"the sandbox host holds no {call.target} to {call.name}")

    async def _of_host(self, call: Call) -> Any:
        operations: dict[str, Callable[..., Awaitable[Any]]] = {
            "claim": self._claim,
            "start": self._start,
            "stop": self._stop,
            "forget": self._backend.forget,
        }
        return await operations[call.name](*call.arguments)

    async def _claim(self) -> dict[str, Any]:
        held = [
            HeldBox(
                target,
                box.box.id,
                box.box.isolation,
                {number: terminal.calls for number, terminal in box.terminals.items()},
                box.pristine,
                box.over,
            )
            for target, box in self._boxes.items()
        ]
        backend = self._backend
        return {
            "settings": self._settings,
            "name": backend.name,
            "isolation": backend.isolation,
            "counts": dict(backend.counts),
            "boxes": held,
        }

    async def _start(self, spec: Any) -> tuple[int, str, str, dict[str, float]]:
        box = await self._backend.start(spec)
        target = self._next()
        self._boxes[target] = _Box(box)
        return target, box.id, box.isolation, dict(self._backend.counts)

    async def _stop(self, target: int) -> None:
        for held in self._boxes.values():
            if target in held.views:
                await held.views.pop(target).stop()
                return
        if (ended := self._boxes.pop(target, None)) is not None:
            await asyncio.gather(ended.box.stop(), *(view.stop() for view in ended.views.values()))

    async def _of_box(self, held: _Box, call: Call) -> Any:
        if call.name == "terminal":
            terminal = await held.box.terminal(**call.options)
            number = self._next()
            held.terminals[number] = _Terminal(terminal)
            return number, terminal.alive
        if call.name == "fork_view":
            return await self._fork_view(held)
        assert call.name in BOX_CALLS, call.name
        held.pristine = False
        return await getattr(held.box, call.name)(*call.arguments, **call.options)

    async def _fork_view(self, held: _Box) -> tuple[int, str, Any, str, bool]:
        held.over = True
        view = await held.box.fork_view()
        held.ended = (*held.ended, *(name for name in view.left.ended if name not in held.ended))
        number = self._next()
        held.views[number] = view
        return number, view.id, replace(view.left, ended=held.ended), view.shell, view.networked

    async def _of_view(self, held: _Box, view: View, call: Call) -> Any:
        assert call.name in BOX_CALLS, call.name
        return await getattr(view, call.name)(*call.arguments, **call.options)

    async def _of_terminal(self, held: _Terminal, call: Call) -> Any:
        if call.name == "close":
            return await held.terminal.close()
        assert call.name in TERMINAL_CALLS, call.name
        asked = (call.name, call.arguments, call.options)
        if call.number == held.calls + 1:
            held.calls, held.asked = call.number, asked
            held.last = asyncio.create_task(self._use(held.terminal, call))
        elif call.number != held.calls or held.asked != asked or held.last is None or held.last.cancelled():
            said = (
                f"call {call.number} ({call.name}) of a terminal that has had {held.calls}, the last {held.asked[:1]}"
            )
            raise InfraFault(FaultCause.SANDBOX, said)
        try:
            return await asyncio.shield(held.last)
        except asyncio.CancelledError:
            if not self._leaving:  # its owner has lost patience; one that is gone may come back for the answer
                held.last.cancel()
            raise

    @staticmethod
    async def _use(terminal: Terminal, call: Call) -> tuple[Any, bool]:
        value = await getattr(terminal, call.name)(*call.arguments, **call.options)
        return value, terminal.alive

    def _next(self) -> int:
        self._last_target += 1
        return self._last_target

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))


async def _comes(listener: socket.socket, until: float) -> socket.socket | None:
    """Who connects next; None where nobody has until then."""
    try:
        async with asyncio.timeout_at(until):
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    except TimeoutError:
        return None
    return connection


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> bool:
    """Whether whoever has come may be heard: it knows the token, or there is none."""
    try:
        async with asyncio.timeout(TOKEN_S):
            return not token or await greeted(reader, writer, token)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return False


async def refuse(listener: socket.socket, error: Exception, token: bytes = b"") -> None:
    """Tells the first owner, instead of serving it, why there are no boxes."""
    listener.setblocking(False)
    async with asyncio.timeout(FIRST_OWNER_S):
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        reader, writer = await asyncio.open_connection(sock=connection)
        asked = await receive(reader) if await _greeted(reader, writer, token) else None
        if isinstance(asked, Call):
            writer.write(pack(Answer(asked.id, error=error)))
        writer.close()
        await writer.wait_closed()
