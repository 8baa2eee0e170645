"""Which trial starts next: the state machine of one step's rollouts (paper Algorithm 3), fed by events.

It does no I/O and reads no clock: `now` is an argument. Invariants (tested as a state machine):
- launched = admitted + cancelled + faulted + alive, always;
- at most `batch` trials are admitted, `group` a task; at most `concurrency` are alive; starts keep to the token bucket;
- alive + admitted never exceeds ⌈(1+ς)·batch⌉, in whole groups, so that a fault, and only a fault, makes room for
  another launch;
- a trial whose launch faulted is launched again before a new one, `max_attempts` times in all, then replaced. The
  others of its group stay: a fault costs one trial, never a group.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers one step is scheduled by."""

    batch: int
    group: int
    """Trials of one task."""
    target: int
    concurrency: int
    starts_per_s: float
    max_attempts: int
    max_fault_share: float

    @staticmethod
    def of(
        batch: int,
        *,
        group: int,
        oversample: float,
        concurrency: int,
        starts_per_s: float,
        max_attempts: int,
        max_fault_share: float,
    ) -> Plan:
        groups = math.ceil(round((1 + oversample) * batch / group, 6))
        return Plan(batch, group, groups * group, concurrency, starts_per_s, max_attempts, max_fault_share)


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an attempt (from 1) at the task of this index, for the member (from 0) of its group."""

    task: int
    attempt: int
    member: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before the next event, or before `until` when it is set."""

    until: float | None


class FinishReason(StrEnum):
    """Why a step is over."""

    FULL = "the batch is full"
    FAULTS = "too many launched trials ended in infrastructure faults"
    EXHAUSTED = "no task is left to launch"


@dataclass(frozen=True, slots=True)
class Finish:
    """The step is over: everything alive is to be cancelled."""

    reason: FinishReason


Action = Launch | Wait | Finish


class TokenBucket:
    """At most `rate` starts a second, with bursts of one second's worth."""

    def __init__(self, rate_per_s: float, now: float) -> None:
        self._rate = rate_per_s
        self._capacity = max(1.0, rate_per_s)
        self._tokens = self._capacity
        self._at = now

    def ready_at(self, now: float) -> float:
        """The time from which a start is allowed."""
        self._refill(now)
        return now if self._tokens >= 1 - 1e-9 else now + (1 - self._tokens) / self._rate

    def take(self, now: float) -> None:
        self._refill(now)
        self._tokens -= 1

    def _refill(self, now: float) -> None:
        self._tokens = min(self._capacity, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)


class StepScheduler:
    """Decides launches for one step. `next` asks what to do; the other methods report what happened."""

    def __init__(self, plan: Plan, tasks: int, now: float) -> None:
        self.plan = plan
        self.consumed = 0
        """Tasks of the supply that were launched at least once."""
        self._members = plan.group
        """Of the last consumed task, how many trials were launched."""
        self.launched = 0
        self.admitted = 0
        self.cancelled = 0
        self.faulted = 0
        self.alive: set[Launch] = set()
        self._tasks = tasks
        self._again: deque[Launch] = deque()
        self._bucket = TokenBucket(plan.starts_per_s, now)

    def next(self, now: float) -> Action:
        """What to do at `now`. A `Launch` counts as started."""
        if self.admitted >= self.plan.batch:
            return Finish(FinishReason.FULL)
        if self.faulted > self.plan.max_fault_share * self.plan.target:
            return Finish(FinishReason.FAULTS)
        candidate = self._candidate()
        if candidate is None:
            return Wait(None) if self.alive else Finish(FinishReason.EXHAUSTED)
        if len(self.alive) >= self.plan.concurrency:
            return Wait(None)
        ready = self._bucket.ready_at(now)
        if ready > now:
            return Wait(ready)
        self._start(candidate, now)
        return candidate

    def completed(self, launch: Launch) -> bool:
        """A trial ended with a verdict. True: it is admitted; False: it came after the batch was full."""
        self._end(launch)
        if self.admitted >= self.plan.batch:
            self.cancelled += 1
            return False
        self.admitted += 1
        return True

    def faulted_by(self, launch: Launch) -> None:
        """A trial ended in an infrastructure fault; its task is launched again unless its attempts are spent."""
        self._end(launch)
        self.faulted += 1
        if launch.attempt < self.plan.max_attempts:
            self._again.append(Launch(launch.task, launch.attempt + 1, launch.member))

    def cancelled_by(self, launch: Launch) -> None:
        """A trial was cancelled before it ended."""
        self._end(launch)
        self.cancelled += 1

    def _candidate(self) -> Launch | None:
        if len(self.alive) + self.admitted >= self.plan.target:
            return None
        if self._again:
            return self._again[0]
        if self._members < self.plan.group:
            return Launch(self.consumed - 1, 1, self._members)
        return Launch(self.consumed, 1) if self.consumed < self._tasks else None

    def _start(self, launch: Launch, now: float) -> None:
        self._bucket.take(now)
        if self._again and self._again[0] == launch:
            self._again.popleft()
        else:
            self.consumed, self._members = launch.task + 1, launch.member + 1
        self.launched += 1
        self.alive.add(launch)

    def _end(self, launch: Launch) -> None:
        assert launch in self.alive, f"{launch} is not alive"
        self.alive.remove(launch)
