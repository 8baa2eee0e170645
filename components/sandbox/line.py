"""What a terminal is read and written through: a pty master of this machine, or one at the other end of a stream.

Invariant: reading takes no more than the terminal wants; a program that writes faster waits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from components.sandbox.zygote import tty

READS_PER_TURN = 16
FLOOD_PAUSE_S = 0.05
"""Between two turns of reads, where the terminal has more than it wants: the program waits, as on a slow terminal."""


class Line(Protocol):
    """One terminal's line."""

    def open(self, take: Callable[[bytes], bool], ended: Callable[[], None]) -> None:
        """Begin to read. `take` is given what was written and says whether that is more than is wanted for now."""
        ...

    async def write(self, data: bytes, patience_s: float) -> None:
        """Type. What no program reads in this time is dropped."""
        ...

    def prompted(self, *, silent: bool) -> None:
        """The shell shows a prompt: whoever is in front now is the shell; a silent one shows nothing that is typed."""
        ...

    async def is_idle(self) -> bool:
        """Whether the shell is in front and nothing that was typed waits to be read."""
        ...

    def drain(self) -> None:
        """The shell has ended: take what it wrote last."""
        ...

    def close(self) -> None:
        """Hang up. Idempotent."""
        ...


class LocalLine:
    """A pty master, read from the event loop; see `Line`. Owns its descriptor."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._slave = tty.peer(master)
        self._shell_group: int | None = None
        self._is_open = True
        self._paused: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def open(self, take: Callable[[bytes], bool], ended: Callable[[], None]) -> None:
        self._take, self._ended = take, ended
        os.set_blocking(self._master, False)
        self._loop.add_reader(self._master, self.drain)

    def drain(self) -> None:
        wanted = True
        for _ in range(READS_PER_TURN):
            if not self._is_open:
                return
            try:
                data = os.read(self._master, 1 << 16)
            except BlockingIOError:
                return
            except OSError:  # EIO: every program has closed it
                self._ended()
                return
            wanted = not self._take(data)
        if not wanted and self._is_open and self._paused is None:
            self._loop.remove_reader(self._master)
            self._paused = self._loop.call_later(FLOOD_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if self._is_open:
            self._loop.add_reader(self._master, self.drain)

    async def write(self, data: bytes, patience_s: float) -> None:
        left = memoryview(data)
        deadline = self._loop.time() + patience_s
        while left and self._is_open:
            try:
                left = left[os.write(self._master, left) :]
            except BlockingIOError:
                if self._loop.time() > deadline:
                    return
                await self._writable(deadline)

    async def _writable(self, deadline: float) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._master, lambda: None if ready.done() else ready.set_result(None))
        try:
            await asyncio.wait([ready], timeout=max(0.0, deadline - self._loop.time()))
        finally:
            if self._is_open:
                self._loop.remove_writer(self._master)

    def prompted(self, *, silent: bool) -> None:
        if self._shell_group is None:
            self._shell_group = os.tcgetpgrp(self._master)
        if silent:
            tty.silence(self._slave)

    async def is_idle(self) -> bool:
        return tty.is_idle(self._master, self._slave, self._shell_group)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._master)
        self._loop.remove_writer(self._master)
        os.close(self._master)
        os.close(self._slave)
