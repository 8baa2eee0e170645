"""Requests by number and their answers, whatever carries them to a box and back.

Invariant: every request ends, with its answer or with InfraFault; once the other side is gone every pending and later
request fails with the same reason.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from components.errors import BoxSpent, FaultCause, InfraFault

Body = dict[str, Any]
Sent = TypeVar("Sent")
Received = TypeVar("Received")
SLICE_S = 1.0
"""What one stand-still of this process may cost of the patience with another."""


async def outlast(future: asyncio.Future[Any], patience_s: float) -> bool:
    """Waits, and says whether it is done; it is left alone when it is not.

    Patience is spent in slices while this process runs. One that was not scheduled, or whose machine was paused, finds
    every deadline passed at once, and what it waited for had no more time than itself.
    """
    while patience_s > 0 and not future.done():
        await asyncio.wait({future}, timeout=min(SLICE_S, patience_s))
        patience_s -= SLICE_S
    return future.done()


class Exchange(ABC, Generic[Sent, Received]):
    """The manager's end.

    Args:
        what: the other side, in errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[Body, Received]]] = {}
        self._fault: InfraFault | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def fault(self) -> InfraFault | None:
        """Why it is closed; None while it is open."""
        return self._fault

    def next_id(self) -> int:
        """A request number that nobody else uses."""
        return next(self._ids)

    def expect(self, number: int) -> asyncio.Future[tuple[Body, Received]]:
        """The message that will carry this number."""
        future: asyncio.Future[tuple[Body, Received]] = self._loop.create_future()
        if self._fault is not None:
            future.set_exception(self._fault)
            future.exception()  # whoever awaits it sees it
        else:
            self._pending[number] = future
        return future

    @abstractmethod
    def post(self, body: Body, attached: Sent | None = None) -> None:
        """Send, now or as soon as the other side takes it; the fault when it is closed."""

    async def request(self, body: Body, attached: Sent | None = None, *, timeout_s: float) -> tuple[Body, Received]:
        """Send and await the answer; an `errno` in it is raised as the OSError it was."""
        number = self.next_id()
        future = self.expect(number)
        self.post({**body, "id": number}, attached)
        return await self.reply(future, str(body["op"]), timeout_s)

    async def reply(
        self, future: asyncio.Future[tuple[Body, Received]], what: str, timeout_s: float
    ) -> tuple[Body, Received]:
        """Await an expected message."""
        try:
            await outlast(future, timeout_s)
        finally:
            late = future.cancel()  # what comes from now on is dropped
        if late:
            raise InfraFault(FaultCause.SANDBOX, f"{self._what}: no answer to {what} in {timeout_s:g} s")
        answer = future.result()
        if "errno" in answer[0]:
            raise OSError(int(answer[0]["errno"]), str(answer[0]["error"]))
        return answer

    def _answered(self, number: int, answer: tuple[Body, Received]) -> bool:
        """Give a message to whoever waits for its number; False when nobody does."""
        future = self._pending.pop(number, None)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def close(self, reason: str, *, spent: bool = False) -> None:
        """Close; whoever waits gets the reason. `spent`: the other side was killed for memory. Idempotent."""
        if self._fault is not None:
            return
        self._fault = (BoxSpent if spent else InfraFault)(FaultCause.SANDBOX, reason)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._fault)
                future.exception()  # whoever still awaits it sees it; nobody else must
        self._pending.clear()
        self._shut(reason)

    @abstractmethod
    def _shut(self, reason: str) -> None:
        """Let go of what carries the messages; called once."""
