"""Requests and events over a SEQPACKET socket, from the event loop.

Invariant: as of `Exchange`; descriptors that nobody awaits are closed.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from components.sandbox.exchange import Exchange
from components.sandbox.zygote import wire


class Channel(Exchange[Sequence[int], list[int]]):
    """The manager's end of a socket to a zygote or a box. What is attached are descriptors; who sends keeps his.

    Args:
        what: the other side, in errors.
        on_event: takes messages that answer no request.
        on_close: is told why the channel closes, once.
        told: when the other side is gone somebody else knows why, and closes this.
    """

    def __init__(
        self,
        sock: socket.socket,
        what: str,
        on_event: Callable[[wire.Body], None] | None = None,
        on_close: Callable[[str], None] | None = None,
        *,
        told: bool = False,
    ) -> None:
        super().__init__(what)
        sock.setblocking(False)
        self._sock = sock
        self._on_event = on_event
        self._on_close = on_close
        self._told = told
        self._outbox: deque[tuple[wire.Body, list[int]]] = deque()
        self._loop.add_reader(sock, self._readable)

    def post(self, body: wire.Body, attached: Sequence[int] | None = None) -> None:
        fds = attached or ()
        if self._fault is not None:
            raise self._fault
        if not self._outbox:
            try:
                wire.send(self._sock, body, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
            except (BrokenPipeError, ConnectionResetError):
                self._ended()
                if self._fault is not None:
                    raise self._fault from None
                return
        self._outbox.append((body, [os.dup(fd) for fd in fds]))

    def _readable(self) -> None:
        while self._fault is None:
            try:
                received = wire.receive(self._sock)
            except BlockingIOError:
                return
            if received is None:
                self._ended()
                return
            self._dispatch(*received)

    def _dispatch(self, body: wire.Body, fds: list[int]) -> None:
        if "id" in body and self._answered(body["id"], (body, fds)):
            return
        for fd in fds:
            os.close(fd)
        if "id" not in body and self._on_event is not None:
            self._on_event(body)

    def _ended(self) -> None:
        """The other side is gone."""
        if not self._told:
            self.close(f"{self._what} is gone")
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)

    def _writable(self) -> None:
        while self._outbox:
            body, fds = self._outbox[0]
            try:
                wire.send(self._sock, body, fds)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._ended()
                return
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._sock)

    def _shut(self, reason: str) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        if self._on_close is not None:
            self._on_close(reason)
