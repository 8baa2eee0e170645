"""Requests and answers over the streams of a container's first process.

Invariant: as of `Exchange`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from components.errors import FaultCause, InfraFault
from components.sandbox.docker.changes import ABOVE_RECORDS, Changes
from components.sandbox.docker.engine import Stream
from components.sandbox.exchange import Exchange
from components.sandbox.line import FLOOD_PAUSE_S
from components.sandbox.zygote import frames

log = logging.getLogger(__name__)

HEAD = struct.Struct(">B3xI")
"""Of each piece of a container's output: which stream, how many bytes."""
STDERR = 2
READ_BYTES = 1 << 18
LAST_WORDS = 2000
PIECES_HELD = 16
"""Of the files that are copied from one box to another, here on their way: a box that takes slowly is waited for."""


class Pieces(NamedTuple):
    """Of files that come out of a box, and how many more may come for now."""

    come: asyncio.Queue[bytes]
    room: asyncio.Semaphore


class Copied(NamedTuple):
    """How much was brought from one box to another, and what was left out because it is no folder any more."""

    size: int
    left: list[str]


class BoxStream(Exchange[bytes, bytes]):
    """The manager's end; what is attached are bytes.

    Args:
        what: the box, in errors.
        why: tells what became of the container, once its stream has ended, and whether it was killed for memory.
    """

    def __init__(self, stream: Stream, what: str, why: Callable[[], Awaitable[tuple[str, bool]]]) -> None:
        super().__init__(what)
        self._reader, self._writer = stream
        self._why = why
        self._lines: dict[int, RemoteLine] = {}
        self._pieces: dict[int, Pieces] = {}
        self._frames = frames.Unpacker()
        self._last_words = b""
        self.on_connection: Callable[[dict[str, Any], bytes], None] | None = None
        """Is told of connections to the box's proxy."""
        self._reading = asyncio.create_task(self._read())

    def post(self, body: dict[str, Any], attached: bytes | None = None) -> None:
        if self._fault is not None:
            raise self._fault
        self._writer.write(frames.pack(body, attached or b""))

    async def copy_to(self, other: BoxStream, changed: Changes, timeout_s: float) -> Copied:
        """Bring what stands at the present paths of this box into another, where the removed are removed first."""
        number = other.next_id()
        done = other.expect(number)
        sent = self.next_id()
        all_sent = self.expect(sent)
        pieces = self._pieces[sent] = Pieces(asyncio.Queue(), asyncio.Semaphore(PIECES_HELD))
        other.post({"op": "unpack", "id": number, "removed": changed.removed})
        self.post({"op": "pack", "id": sent, "paths": changed.present, "folders": sorted(ABOVE_RECORDS)})
        all_sent.add_done_callback(lambda _: pieces.come.put_nowait(b""))
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while piece := await pieces.come.get():
                    size += len(piece)
                    other.post({"op": "piece"}, piece)
                    await other._writer.drain()
                    pieces.room.release()
        except (TimeoutError, ConnectionError) as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self._what}: its files were not copied: {error!r}") from error
        finally:
            del self._pieces[sent]
            pieces.room.release()  # whoever has read one that nobody waits for reads on
        other.post({"op": "piece"})
        answer, _ = await self.reply(all_sent, "pack", timeout_s)
        await other.reply(done, "unpack", timeout_s)
        return Copied(size, answer["left"])

    def line(self, number: int) -> RemoteLine:
        """The line of a terminal that is about to be opened."""
        return self._lines.setdefault(number, RemoteLine(self, number))

    def forget(self, number: int) -> None:
        """A line that is closed."""
        self._lines.pop(number, None)

    async def _read(self) -> None:
        try:
            while True:
                kind, size = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                data = await self._reader.readexactly(size)
                if kind == STDERR:
                    log.warning("%s: %s", self._what, data.decode(errors="replace").rstrip())
                    self._last_words = (self._last_words + data)[-LAST_WORDS:]
                    continue
                for body, blob in self._frames.feed(data):
                    if body.get("piece") in self._pieces:
                        await self._take(self._pieces[body["piece"]], blob)
                    else:
                        self._dispatch(body, blob)
        except (asyncio.IncompleteReadError, OSError) as error:
            why, spent = (str(error), False) if self._fault is not None else await self._why()
            words = self._last_words.decode(errors="replace").strip()
            self.close(f"{self._what} is gone: {why}{': ' + words.splitlines()[-1] if words else ''}", spent=spent)
        except Exception as error:  # the boundary at which a box that says what is no message is given up
            self.close(f"{self._what} says what is no message: {error!r}")

    async def _take(self, pieces: Pieces, blob: bytes) -> None:
        await pieces.room.acquire()
        pieces.come.put_nowait(blob)

    def _dispatch(self, body: dict[str, Any], blob: bytes) -> None:
        if "piece" in body:
            return  # of a copy that was given up
        if "tty" in body:
            if body["tty"] in self._lines:
                self._lines[body["tty"]].receive(blob, ended="ended" in body)
        elif "net" in body:
            if self.on_connection is not None:
                self.on_connection(body, blob)
        else:
            self._answered(body["id"], (body, blob))

    def _shut(self, reason: str) -> None:
        self._writer.close()
        if asyncio.current_task() is not self._reading:
            self._reading.cancel()


class RemoteLine:
    """A terminal in a box that an engine runs; see `Line`."""

    def __init__(self, stream: BoxStream, number: int) -> None:
        self._stream = stream
        self._number = number
        self._held: list[bytes] = []
        self._take: Callable[[bytes], bool] | None = None
        self._is_open = True
        self._loop = asyncio.get_running_loop()

    def open(self, take: Callable[[bytes], bool], ended: Callable[[], None]) -> None:
        self._take, self._ended = take, ended
        held, self._held = self._held, []
        for data in held:
            self.receive(data, ended=False)

    def receive(self, data: bytes, *, ended: bool) -> None:
        """What the box's first process has read."""
        if self._take is None:
            self._held.append(data)
            return
        if not self._is_open:
            return
        enough = bool(data) and self._take(data)
        if data:
            self._loop.call_later(FLOOD_PAUSE_S if enough else 0, self._grant, len(data))
        if ended:
            self._ended()

    def _grant(self, size: int) -> None:
        if self._is_open and self._stream.fault is None:
            self._stream.post({"op": "taken", "tty": self._number, "bytes": size})

    async def write(self, data: bytes, patience_s: float) -> None:
        deadline = self._loop.time() + patience_s
        waiting = await self._type(data)
        while waiting and self._is_open:
            await asyncio.sleep(FLOOD_PAUSE_S)
            waiting = await self._type(b"", give_up=self._loop.time() > deadline)

    async def _type(self, data: bytes, *, give_up: bool = False) -> bool:
        body = {"op": "type", "tty": self._number, "give_up": give_up}
        answer, _ = await self._stream.request(body, data, timeout_s=LINE_S)
        return bool(answer["waiting"])

    def prompted(self, *, silent: bool) -> None:
        if self._stream.fault is None:
            self._stream.post({"op": "prompted", "tty": self._number, "silent": silent})

    async def is_idle(self) -> bool:
        answer, _ = await self._stream.request({"op": "idle", "tty": self._number}, timeout_s=LINE_S)
        return bool(answer["idle"])

    def drain(self) -> None:
        """What was written is sent before the end is told."""

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._stream.forget(self._number)
        if self._stream.fault is None:
            self._stream.post({"op": "hang_up", "tty": self._number})


LINE_S = 60.0
"""A box whose share of the processor is used up by its programs still answers within this."""
