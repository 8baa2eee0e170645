"""Bounded capture of what programs write: the beginning and the end are kept, the middle is counted.

Invariant: memory never exceeds the bound, whatever is written; with nothing dropped the bytes are exact.
"""

from __future__ import annotations

import asyncio
import os

READ_BYTES = 1 << 16
DRAIN_READS = 64
"""Reads after the command's end: more than a pipe holds, and an end to a background writer's patience."""


class HeadTail:
    """Keeps the first and the last half of a stream."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Bytes that were not kept."""
        return self._dropped + max(0, len(self._tail) - self._tail_limit)

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._head) + len(self._tail)

    def add(self, data: bytes) -> None:
        """Append what was written."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_limit + READ_BYTES:
                self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def contents(self) -> bytes:
        """What is kept, with a note where bytes are missing."""
        self._trim()
        note = b"\n[... %d bytes omitted ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + note + bytes(self._tail)

    def take(self) -> bytes:
        """The contents, and start anew."""
        contents = self.contents()
        self._head.clear()
        self._tail.clear()
        self._dropped = 0
        return contents


class PipeCapture:
    """Reads one pipe of a command from the event loop."""

    def __init__(self, limit: int) -> None:
        self.kept = HeadTail(limit)
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._readable)
        self._open = True

    def _readable(self) -> None:
        if not self._read_once():
            self._stop_reading()

    def _read_once(self) -> bool:
        """False at the end of the stream."""
        data = os.read(self._read, READ_BYTES)
        self.kept.add(data)
        return bool(data)

    def _stop_reading(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._read)

    def finish(self) -> bytes:
        """Take what is in the pipe now, without waiting for background writers, and close it."""
        try:
            for _ in range(DRAIN_READS if self._open else 0):
                if not self._read_once():
                    break
        except BlockingIOError:
            pass
        self._stop_reading()
        os.close(self._read)
        return self.kept.contents()
