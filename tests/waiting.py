"""Waiting in tests: for what must come about, whatever the machine's speed, and in time that passes at once."""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any


def eventually(
    condition: Callable[[], bool], within_s: float = 200.0, told: Callable[[], str] = lambda: "it did not happen"
) -> None:
    """Waits for a condition. The bound ends a test that hangs, and judges nothing."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {told()}"
        time.sleep(0.05)


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing: the time that it was to wait has passed at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            self.now += timeout
        return super().select(timeout and 0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """Whose time passes only in waiting, as long as was asked for."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def in_skipped_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Makes a test of a coroutine that is run so."""

    @functools.wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(test())

    return run
