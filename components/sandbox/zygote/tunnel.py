"""The box's end of its way out: a port on its own loopback, whose connections travel over the manager's stream.

Invariant: a program of the box reaches nobody but the manager's proxy, and no more of a connection is on its way than
the manager has asked for.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Any

WINDOW_BYTES = 1 << 18
CONNECTIONS = 256
"""At once, of one box; the manager's proxy answers fewer."""
READ_BYTES = 1 << 16


class Connection:
    """A program's connection; `answers` are what the manager sent, with the requests that wait for its being taken."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.number = number
        self.window = WINDOW_BYTES
        self.reading = True
        self.answers: list[tuple[int, memoryview]] = []
        self.finished = False


class Tunnels:
    """Every connection of a box to its proxy."""

    def __init__(self, poll: select.poll, say: Callable[[dict[str, Any], bytes], None]) -> None:
        self._poll = poll
        self._say = say
        self._server: socket.socket | None = None
        self._by_fd: dict[int, Connection] = {}
        self._by_number: dict[int, Connection] = {}
        self._count = 0

    def listen(self, port: int) -> None:
        """Begin to accept."""
        self._server = socket.create_server(("127.0.0.1", port), backlog=64)
        self._server.setblocking(False)
        self._poll.register(self._server, select.POLLIN)

    def takes(self, fd: int, event: int) -> bool:
        """Whether what happened to a descriptor was ours to handle."""
        if self._server is not None and fd == self._server.fileno():
            self._accept(self._server)
            return True
        connection = self._by_fd.get(fd)
        if connection is None:
            return False
        try:
            if event & select.POLLOUT:
                self._write(connection)
            if event & ~select.POLLOUT and connection.sock.fileno() >= 0:
                self._read(connection)
        except OSError:
            self.drop(connection.number)
        return True

    def _accept(self, server: socket.socket) -> None:
        try:
            sock, _ = server.accept()
        except OSError:
            return
        if len(self._by_fd) >= CONNECTIONS:
            sock.close()
            return
        self._count += 1
        connection = Connection(sock, self._count)
        self._by_fd[sock.fileno()] = self._by_number[self._count] = connection
        self._say({"net": self._count, "opened": True}, b"")
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        wanted = select.POLLIN if connection.reading and connection.window > 0 else 0
        wanted |= select.POLLOUT if connection.answers else 0
        if wanted:
            self._poll.register(connection.sock, wanted)
            return
        with contextlib.suppress(KeyError):
            self._poll.unregister(connection.sock)

    def _read(self, connection: Connection) -> None:
        if not connection.reading or connection.window <= 0:
            self._watch(connection)
            return
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        connection.reading = bool(data)
        connection.window -= len(data)
        self._watch(connection)
        self._say({"net": connection.number} if data else {"net": connection.number, "ended": True}, data)

    def _write(self, connection: Connection) -> None:
        while connection.answers:
            request, data = connection.answers[0]
            try:
                left = data[connection.sock.send(data) :]
            except BlockingIOError:
                connection.answers[0] = (request, data)
                break
            if left:
                connection.answers[0] = (request, left)
                continue
            connection.answers.pop(0)
            self._say({"id": request}, b"")
        if connection.finished and not connection.answers:
            connection.sock.shutdown(socket.SHUT_WR)
        self._watch(connection)

    def send(self, number: int, request: int, data: bytes) -> None:
        """What the other side says; answered once it is taken, or nobody is there to take it."""
        connection = self._by_number.get(number)
        if connection is None:
            self._say({"id": request}, b"")
            return
        connection.answers.append((request, memoryview(data)))
        try:
            self._write(connection)
        except OSError:
            self.drop(number)

    def finish(self, number: int) -> None:
        """The other side says no more."""
        connection = self._by_number.get(number)
        if connection is not None:
            connection.finished = True
            try:
                self._write(connection)
            except OSError:
                self.drop(number)

    def taken(self, number: int, size: int) -> None:
        """So much has been taken by the other side."""
        connection = self._by_number.get(number)
        if connection is not None:
            connection.window += size
            self._watch(connection)

    def drop(self, number: int) -> None:
        """Close a connection; whoever waits for what it was to take waits no longer."""
        connection = self._by_number.pop(number, None)
        if connection is None:
            return
        del self._by_fd[connection.sock.fileno()]
        with contextlib.suppress(KeyError):
            self._poll.unregister(connection.sock)
        connection.sock.close()
        for request, _ in connection.answers:
            self._say({"id": request}, b"")
        self._say({"net": number, "gone": True}, b"")
