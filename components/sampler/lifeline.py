"""Ties a server to the process that started it.

Invariant: however the parent ends, kill -9 included, the server ends within a moment. Two independent signs, since each
has a gap: the pipe on stdin stays open when an unrelated fork inherited its other end, and the parent-death signal
comes already when the *thread* that forked ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def watch_parent(loop: asyncio.AbstractEventLoop, parent: int, stop: Callable[[], None]) -> None:
    """Calls `stop` when stdin reaches its end or process `parent` dies."""

    def orphaned() -> None:
        if os.getppid() != parent:
            stop()

    loop.add_signal_handler(signal.SIGUSR1, orphaned)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    orphaned()  # it may have died before the signal was armed

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop()

    loop.add_reader(0, readable)
