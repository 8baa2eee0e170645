"""Time that a trial runs, for its deadlines: while it waits at a barrier, its clock stands.

Invariant: a limit ends what it guards after that many seconds of running, however long the trial was paused between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class RunningTime:
    """The clock of one trial. Its limits nest; it is paused as a whole, by the task that they guard."""

    def __init__(self) -> None:
        self.paused_s = 0.0
        """Seconds that the trial has stood still, less those that it had run in an earlier process."""
        self._began = time.monotonic()
        self._limits: list[asyncio.Timeout] = []

    @property
    def running_s(self) -> float:
        """Seconds that the trial has run."""
        return time.monotonic() - self._began - self.paused_s

    def advance(self, running_s: float) -> None:
        """Takes the trial for having run so long at least: an earlier process had brought it there."""
        self.give_back(min(0.0, self.running_s - running_s))

    def limit(self, seconds: float) -> Limit:
        """As `asyncio.timeout`, in running seconds."""
        return Limit(self._limits, seconds)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stops the clock for the time of the context. A limit that has run out already stays so."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        due = [(timeout, timeout.when()) for timeout in self._limits if not timeout.expired()]
        for timeout, _ in due:
            timeout.reschedule(None)
        try:
            yield
        finally:
            waited = loop.time() - start
            self.paused_s += waited
            for timeout, when in due:
                timeout.reschedule(None if when is None else when + waited)

    def give_back(self, seconds: float) -> None:
        """Takes seconds that have passed for not passed: what they were spent on was lost to the infrastructure."""
        self.paused_s += seconds
        for timeout in self._limits:
            when = timeout.when()
            if when is not None and not timeout.expired():
                timeout.reschedule(when + seconds)


class Limit:
    """A deadline on a trial's clock, as an asynchronous context.

    Raises:
        TimeoutError: at its end, when the time ran out; `expired` tells it from another's.
    """

    def __init__(self, limits: list[asyncio.Timeout], seconds: float) -> None:
        self._limits = limits
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    @property
    def expired(self) -> bool:
        """Whether the time ran out."""
        return self._timeout is not None and self._timeout.expired()

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        self._limits.append(self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeout is not None, "a limit is entered before it is left"
        self._limits.remove(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)
