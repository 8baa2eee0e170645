"""The barrier between weight versions: no turn is drawn across it.

Invariant: when `close` returns no draw is in flight, and none begins before `open`. Every draw knows the version that
it is made under.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from components.gateway import Policy, Prompt
from components.harness import RunningTime
from components.records import Sampling
from components.tito import Drawn


class Barrier:
    """Closed at first. Trials pass it before every turn; use within one event loop."""

    def __init__(self) -> None:
        self.version = -1
        """Version of the weights that draws are made under."""
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._drawing = 0

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self, version: int) -> None:
        """Lets draws through, under this version."""
        assert version >= self.version, f"version {version} after {self.version}"
        self.version = version
        self._open.set()

    async def close(self) -> None:
        """Holds further draws back, and waits until those in flight have ended."""
        self._open.clear()
        await self._idle.wait()

    @asynccontextmanager
    async def draw(self, time: RunningTime) -> AsyncIterator[None]:
        """Waits until the barrier is open, with the trial's clock standing, and counts as in flight from then on."""
        while not self.is_open:
            with time.standing_still():
                await self._open.wait()
        self._drawing += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._drawing -= 1
            if not self._drawing:
                self._idle.set()


class BehindBarrier:
    """A policy whose draws pass a barrier."""

    def __init__(self, policy: Policy, barrier: Barrier, time: RunningTime) -> None:
        self._policy = policy
        self._barrier = barrier
        self._time = time

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Drawn:
        async with self._barrier.draw(self._time):
            return await self._policy.answer(prompt, sampling=sampling, max_new_tokens=max_new_tokens)
