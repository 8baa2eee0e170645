"""Requests and events over a SEQPACKET socket, from the event loop.

Invariant: every request ends, with its reply or with InfraFault; once the other side is gone every pending and later
request fails with the same reason, and descriptors that nobody awaits are closed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from components.errors import FaultCause, InfraFault
from components.sandbox.zygote import wire

Reply = tuple[wire.Body, list[int]]
SLICE_S = 1.0
"""What one stand-still of this process may cost of the patience with another."""


async def outlast(future: asyncio.Future[Any], patience_s: float) -> bool:
    """Waits, and says whether it is done; it is left alone when it is not.

    Patience is spent in slices while this process runs. One that was not scheduled, or whose machine was paused, finds
    every deadline passed at once, and what it waited for had no more time than itself.
    """
    while patience_s > 0 and not future.done():
        await asyncio.wait({future}, timeout=min(SLICE_S, patience_s))
        patience_s -= SLICE_S
    return future.done()


class Channel:
    """The manager's end of a socket to a zygote or a box.

    Args:
        what: the other side, in errors.
        on_event: takes messages that answer no request.
        on_close: is told why the channel closes, once.
    """

    def __init__(
        self,
        sock: socket.socket,
        what: str,
        on_event: Callable[[wire.Body], None] | None = None,
        on_close: Callable[[str], None] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._what = what
        self._on_event = on_event
        self._on_close = on_close
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._outbox: deque[tuple[wire.Body, list[int]]] = deque()
        self._fault: InfraFault | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @property
    def fault(self) -> InfraFault | None:
        """Why the channel is closed; None while it is open."""
        return self._fault

    def next_id(self) -> int:
        """A request number that nobody else uses."""
        return next(self._ids)

    def expect(self, number: int) -> asyncio.Future[Reply]:
        """The message that will carry this number."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._fault is not None:
            future.set_exception(self._fault)
        else:
            self._pending[number] = future
        return future

    def post(self, body: wire.Body, fds: Sequence[int] = ()) -> None:
        """Send, now or as soon as the socket takes it. The caller keeps its descriptors."""
        if self._fault is not None:
            raise self._fault
        if not self._outbox:
            try:
                wire.send(self._sock, body, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
            except (BrokenPipeError, ConnectionResetError):
                self.close(f"{self._what} is gone")
                raise self._fault or AssertionError from None
        self._outbox.append((body, [os.dup(fd) for fd in fds]))

    async def request(self, body: wire.Body, fds: Sequence[int] = (), *, timeout_s: float) -> Reply:
        """Send and await the reply; an `errno` in it is raised as the OSError it was."""
        number = self.next_id()
        future = self.expect(number)
        self.post({**body, "id": number}, fds)
        return await self.reply(future, str(body["op"]), timeout_s)

    async def reply(self, future: asyncio.Future[Reply], what: str, timeout_s: float) -> Reply:
        """Await an expected message."""
        try:
            await outlast(future, timeout_s)
        finally:
            late = future.cancel()  # what comes from now on is dropped, its descriptors closed
        if late:
            raise InfraFault(FaultCause.SANDBOX, f"{self._what}: no answer to {what} in {timeout_s:g} s")
        answer = future.result()
        if "errno" in answer[0]:
            raise OSError(int(answer[0]["errno"]), str(answer[0]["error"]))
        return answer

    def _readable(self) -> None:
        while self._fault is None:
            try:
                received = wire.receive(self._sock)
            except BlockingIOError:
                return
            if received is None:
                self.close(f"{self._what} is gone")
                return
            self._dispatch(*received)

    def _dispatch(self, body: wire.Body, fds: list[int]) -> None:
        future = self._pending.pop(body["id"], None) if "id" in body else None
        if future is not None and not future.done():
            future.set_result((body, fds))
            return
        for fd in fds:
            os.close(fd)
        if "id" not in body and self._on_event is not None:
            self._on_event(body)

    def _writable(self) -> None:
        while self._outbox:
            body, fds = self._outbox[0]
            try:
                wire.send(self._sock, body, fds)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self.close(f"{self._what} is gone")
                return
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._sock)

    def close(self, reason: str) -> None:
        """Close the socket; whoever waits gets the reason."""
        if self._fault is not None:
            return
        self._fault = InfraFault(FaultCause.SANDBOX, reason)
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._fault)
                future.exception()  # whoever still awaits it sees it; nobody else must
        self._pending.clear()
        if self._on_close is not None:
            self._on_close(reason)
