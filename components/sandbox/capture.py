"""Bounded capture of what programs write: the beginning and the end are kept, the middle is counted.

Invariant: memory never exceeds the bound, whatever is written; with nothing dropped the bytes are exact.
"""

from __future__ import annotations

import asyncio
import os

from components.sandbox.zygote.headtail import READ_BYTES, HeadTail

DRAIN_READS = 64
"""Reads after the command's end: more than a pipe holds, and an end to a background writer's patience."""


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
