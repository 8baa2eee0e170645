"""Which trial starts next: the state machine of one step's rollouts (paper Algorithm 3), fed by events.

It does no I/O and reads no clock: `now` is an argument. Invariants (tested as a state machine):
- launched + resumed = admitted + cancelled + carried + faulted + alive, always;
- at most `batch` trials are admitted; at most `concurrency` are alive; starts keep to the token bucket;
- alive + admitted never exceeds `limit`, so that a fault, and only a fault, makes room for another launch;
- a trial whose launch faulted is launched again before a new one, `max_attempts` times in all, then replaced. The
  others of its group stay: a fault costs one trial, never a group;
- the step waits for every protected trial: a place in the batch is kept for it until it ends.

What a step leaves unfinished is its tail. The paper cancels it and forgets it, which trains on fewer hard tasks than it
draws; `Tail` names what else can be done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Tail(StrEnum):
    """What becomes of the trials that are unfinished when the batch is full (design section 6)."""

    CANCEL = "cancel"
    """The paper's rule: they are cancelled, and their tasks come back when the pool does."""
    RETRY = "retry"
    """They are cancelled, and their tasks are launched again first in the next step."""
    CARRY = "carry"
    """They are paused with their sandboxes, and go on in the next step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers one step is scheduled by.

    Attributes:
        batch: B, the trials that a step admits.
        group: trials of one task.
        limit: the most that may be alive or admitted: ⌈(1+ς)B⌉ in whole groups. Where less than a batch can be alive at
            once and the tail is carried, nothing is lost by launching early, and it is B + concurrency: no slot idles.
        max_rejected: the most that may be rejected, for a record that is not what was sampled, before the step ends.
    """

    batch: int
    group: int
    limit: int
    concurrency: int
    starts_per_s: float
    max_attempts: int
    max_fault_share: float
    max_rejected: int
    tail: Tail

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
        max_rejected_share: float,
        tail: Tail,
    ) -> Plan:
        wanted = (1 + oversample) * batch
        if tail is Tail.CARRY and concurrency < batch:
            wanted = max(wanted, batch + concurrency)
        limit = math.ceil(round(wanted / group, 6)) * group
        return Plan(
            batch,
            group,
            limit,
            concurrency,
            starts_per_s,
            max_attempts,
            max_fault_share,
            tolerated(max_rejected_share, limit),
            tail,
        )


def tolerated(max_rejected_share: float, trials: int) -> int:
    """How many of these trials may be rejected before it is no accident. One alone always is."""
    return max(1, int(max_rejected_share * trials))


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an attempt (from 1) at the task of this index, for the member (from 0) of its group.

    `protected`: the step waits for it.
    """

    task: int
    attempt: int
    member: int = 0
    protected: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before the next event, or before `until` when it is set."""

    until: float | None


class FinishReason(StrEnum):
    """Why a step is over."""

    FULL = "the batch is full"
    FAULTS = "too many launched trials ended in infrastructure faults"
    REJECTED = "too many trials were rejected"
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
    """Decides launches for one step. `next` asks what to do; the other methods report what happened.

    Args:
        tasks: how many tasks the supply holds; they are launched in its order.
        running: carried trials. They are alive already and start nothing. Their indices lie outside the supply.
        first: trials that are launched before the supply, the protected ones first. Their indices lie outside it too.
            No more than `batch` of both are protected.
    """

    def __init__(
        self, plan: Plan, tasks: int, now: float, *, running: Sequence[Launch] = (), first: Sequence[Launch] = ()
    ) -> None:
        assert all(launch.task >= tasks for launch in (*running, *first)), "an index of the supply is taken"
        self.plan = plan
        self.consumed = 0
        """Tasks of the supply that were launched at least once."""
        self._members = plan.group
        """Of the last consumed task, how many trials were launched."""
        self.launched = 0
        self.resumed = len(running)
        self.admitted = 0
        self.cancelled = 0
        self.carried = 0
        self.faulted = 0
        self.rejected = 0
        """Of the faulted ones, those whose record may not be trained on."""
        self.alive: set[Launch] = set(running)
        self._reserved = sum(launch.protected for launch in (*running, *first))
        """Places of the batch that are kept for protected trials."""
        assert self._reserved <= plan.batch, "more trials are protected than the batch has places"
        self._tasks = tasks
        self._ahead: deque[Launch] = deque(sorted(first, key=lambda launch: not launch.protected))
        self._bucket = TokenBucket(plan.starts_per_s, now)

    @property
    def waiting(self) -> list[Launch]:
        """Launches that the step owes: what was to come first or again, and the rest of a group that was begun."""
        rest = [Launch(self.consumed - 1, 1, member) for member in range(self._members, self.plan.group)]
        return [*self._ahead, *rest]

    def next(self, now: float) -> Action:
        """What to do at `now`. A `Launch` counts as started."""
        if self.rejected > self.plan.max_rejected:
            return Finish(FinishReason.REJECTED)
        if self.admitted >= self.plan.batch:
            return Finish(FinishReason.FULL)
        if self.faulted > self.plan.max_fault_share * self.plan.limit:
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
        """A trial ended with a verdict.

        Returns:
            True: it is admitted. False: no place is left for it; it waits for the next step when the tail is carried,
            and is cancelled otherwise.
        """
        self._end(launch)
        self._reserved -= launch.protected
        if self.admitted + self._reserved >= self.plan.batch:
            if self.plan.tail is Tail.CARRY:
                self.carried += 1
            else:
                self.cancelled += 1
            return False
        self.admitted += 1
        return True

    def faulted_by(self, launch: Launch, *, rejected: bool = False) -> None:
        """A trial ended in an infrastructure fault; its task is launched again unless its attempts are spent.

        `rejected`: it ran to its end, and its record may not be trained on.
        """
        self._end(launch)
        self.faulted += 1
        self.rejected += rejected
        again = replace(launch, attempt=launch.attempt + 1)
        if again.attempt <= self.plan.max_attempts:
            (self._ahead.appendleft if again.protected else self._ahead.append)(again)
        else:
            self._reserved -= launch.protected

    def cancelled_by(self, launch: Launch) -> None:
        """A trial was cancelled before it ended."""
        self._end(launch)
        self._reserved -= launch.protected
        self.cancelled += 1

    def carried_by(self, launch: Launch) -> None:
        """A trial was paused, to go on in the next step."""
        self._end(launch)
        self._reserved -= launch.protected
        self.carried += 1

    def _candidate(self) -> Launch | None:
        if len(self.alive) + self.admitted >= self.plan.limit:
            return None
        if self._ahead and self._ahead[0].protected:
            return self._ahead[0]
        if self.admitted + self._reserved >= self.plan.batch:
            return None
        if self._ahead:
            return self._ahead[0]
        if self._members < self.plan.group:
            return Launch(self.consumed - 1, 1, self._members)
        return Launch(self.consumed, 1) if self.consumed < self._tasks else None

    def _start(self, launch: Launch, now: float) -> None:
        self._bucket.take(now)
        if self._ahead and self._ahead[0] == launch:
            self._ahead.popleft()
        else:
            self.consumed, self._members = launch.task + 1, launch.member + 1
        self.launched += 1
        self.alive.add(launch)

    def _end(self, launch: Launch) -> None:
        assert launch in self.alive, f"{launch} is not alive"
        self.alive.remove(launch)
