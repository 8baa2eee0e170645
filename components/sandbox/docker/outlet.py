"""The manager's end of a box's way out: each connection of a program, as far as the proxy that judges it.

Invariant: nothing of the box is connected to anything but that proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

from components.errors import InfraFault
from components.sandbox.docker.stream import LINE_S, BoxStream
from components.sandbox.proxy import PORT, BoxProxy, environment

CHUNK_BYTES = 1 << 17


class Outlet:
    """Of one box."""

    def __init__(self, stream: BoxStream, hosts: Sequence[str]) -> None:
        self._stream = stream
        self._proxy = BoxProxy(hosts)
        self._connections: dict[int, asyncio.Queue[bytes]] = {}
        self._carriers: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        stream.on_connection = self._told

    @property
    def env(self) -> dict[str, str]:
        """Variables that programs of the box find it by."""
        return environment()

    async def open(self) -> None:
        """Have the box listen."""
        await self._stream.request({"op": "listen", "port": PORT}, timeout_s=LINE_S)

    def _told(self, body: dict[str, Any], blob: bytes) -> None:
        number = body["net"]
        if "opened" in body:
            self._connections[number] = asyncio.Queue()
            carrier = self._carriers[number] = self._do(self._carry(number))
            carrier.add_done_callback(lambda _: self._forget(number))
        elif number in self._connections and "gone" in body:
            self._carriers[number].cancel()  # nobody is there to take what still comes
        elif number in self._connections:
            self._connections[number].put_nowait(blob)  # nothing, at its end

    def _forget(self, number: int) -> None:
        del self._connections[number], self._carriers[number]

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry(self, number: int) -> None:
        """One connection, to its end on both sides."""
        ours, theirs = socket.socketpair()
        self._do(self._proxy.answer(theirs))
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._outwards(number, writer))
                both.create_task(self._inwards(number, reader))
        except* (OSError, InfraFault):
            pass  # either side has gone: there is nobody to tell
        finally:
            writer.close()
            with contextlib.suppress(InfraFault):
                self._stream.post({"op": "net_drop", "net": number})

    async def _outwards(self, number: int, writer: asyncio.StreamWriter) -> None:
        while data := await self._connections[number].get():
            writer.write(data)
            await writer.drain()
            self._stream.post({"op": "net_taken", "net": number, "bytes": len(data)})
        writer.write_eof()

    async def _inwards(self, number: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._stream.request({"op": "net", "net": number}, data, timeout_s=LINE_S)
        self._stream.post({"op": "net_end", "net": number})

    def close(self) -> None:
        """Cut every connection. Idempotent."""
        self._proxy.close()
        for task in self._tasks:
            task.cancel()
