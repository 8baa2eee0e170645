"""The native runner: held-out tasks through the same harness that trains.

Invariant: every (task, attempt) asked for has exactly one trial in the result, in the order asked for. A trial that
ends in an infrastructure fault is run again up to `tries` times; what is left of faults is in the result and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from components.records import Trial

T = TypeVar("T")

RunAttempt = Callable[[T, int, int], Awaitable[Trial]]
"""(task, attempt from 1, try from 1) -> its trial."""


async def evaluate(
    tasks: Sequence[T],
    run_attempt: RunAttempt[T],
    *,
    attempts: int = 1,
    concurrency: int = 64,
    tries: int = 2,
) -> list[Trial]:
    """Runs every task `attempts` times, `concurrency` at once."""
    gate = asyncio.Semaphore(concurrency)

    async def one(task: T, attempt: int) -> Trial:
        async with gate:
            trial = await run_attempt(task, attempt, 1)
            for number in range(2, tries + 1):
                if trial.fault is None:
                    break
                trial = await run_attempt(task, attempt, number)
            return trial

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, attempt)) for task in tasks for attempt in range(1, attempts + 1)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in running]
