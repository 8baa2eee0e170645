"""What a tail rule does to the batch, in virtual time: durations through the real scheduler, without waiting for them.

Invariant: every decision is `StepScheduler`'s and every row is the `Ledger`'s; only the clock and the trials are not
real. Generation alone is simulated: a barrier takes no time, and a trial that is carried has what is left of its
duration before it.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from components.records import TaskRef
from components.rollout import (
    Finish,
    Launch,
    Ledger,
    Origin,
    Outcome,
    Plan,
    StepScheduler,
    Tail,
    Unfinished,
    Wait,
    returns,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of tasks: its share of the pool, and the lognormal of its trials' durations (seconds)."""

    name: str
    share: float
    mu: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a run of steps came to.

    Attributes:
        ledgers: one a step.
        step_s: virtual seconds of each step.
        busy_share: slot-seconds in which a trial ran, over slots × seconds until the run's last admission.
    """

    ledgers: tuple[Ledger, ...]
    step_s: tuple[float, ...]
    busy_share: float

    def shares(self, *, drawn: bool) -> dict[str, float]:
        """Share of each class among the tasks that were drawn from the pool, or among the admitted trials."""
        rows = [row for ledger in self.ledgers for row in ledger.rows]
        chosen = [row for row in rows if (row.origin is Origin.DRAWN if drawn else row.outcome is Outcome.ADMITTED)]
        counts = Counter(row.difficulty for row in chosen)
        return {name: count / counts.total() for name, count in counts.items()}

    def mean(self, outcome: Outcome) -> float:
        """Trials a step with this outcome."""
        return sum(ledger.counts()[outcome] for ledger in self.ledgers) / len(self.ledgers)

    def late_share(self) -> float:
        """Share of the admitted trials that a step or more had passed over."""
        admitted = [row for ledger in self.ledgers for row in ledger.rows if row.outcome is Outcome.ADMITTED]
        return sum(row.streak > 0 for row in admitted) / len(admitted)


def simulate(plan: Plan, kinds: Sequence[Kind], *, steps: int, max_streak: int, seed: int = 0) -> Simulation:
    """Runs `steps` steps of an endless pool of these kinds of tasks.

    Raises:
        ValueError: the shares of the kinds do not sum to 1.
    """
    if abs(sum(kind.share for kind in kinds) - 1) > 1e-6:
        raise ValueError(f"the shares of the kinds sum to {sum(kind.share for kind in kinds):g}, not 1")
    run = _Run(plan, kinds, max_streak, np.random.default_rng(seed))
    before = 0.0
    ledgers, seconds = [], []
    for step in range(steps):
        ledgers.append(run.step(step))
        seconds.append(run.now - before)
        before = run.now
    return Simulation(tuple(ledgers), tuple(seconds), run.busy_s / (plan.concurrency * run.now))


@dataclass(slots=True)
class _Running:
    """A trial that is alive. `left_s` is what remained of its duration at `since`."""

    trial_id: str
    task: TaskRef
    launch: Launch
    origin: Origin
    streak: int
    left_s: float
    since: float


class _Run:
    """The state that passes from step to step, and the way through one."""

    def __init__(self, plan: Plan, kinds: Sequence[Kind], max_streak: int, random: np.random.Generator) -> None:
        self.now = 0.0
        self.busy_s = 0.0
        self._plan = plan
        self._kinds = {kind.name: kind for kind in kinds}
        self._bounds = list(itertools.accumulate(kind.share for kind in kinds))
        self._max_streak = max_streak
        self._random = random
        self._names = itertools.count()
        self._pool: list[TaskRef] = []
        self._carried: dict[str, _Running] = {}
        self._unfinished: list[Unfinished] = []

    def step(self, number: int) -> Ledger:
        """One step, from its first launch to the moment its batch is full."""
        self._begin(number)
        while not isinstance(action := self._scheduler.next(self.now), Finish):
            match action:
                case Launch():
                    self._launch(action)
                case Wait(until) if until is not None and (not self._ends or until < self._ends[0][0]):
                    self.now = until
                case Wait():
                    self._end_next()
        for running in list(self._alive.values()):
            self._leave(running)
        over = [*self._over, *map(self._anew, self._scheduler.waiting)]
        self._unfinished = [] if self._plan.tail is Tail.CANCEL else over
        self._ledger.check()
        return self._ledger

    def _begin(self, number: int) -> None:
        supply = self._plan.limit + self._plan.batch
        back = returns(self._unfinished, self._carried, self._plan, supply, max_streak=self._max_streak)
        carried, self._carried = self._carried, {}
        self._ledger = Ledger(number)
        self._over: list[Unfinished] = []
        self._alive: dict[Launch, _Running] = {}
        self._ends: list[tuple[float, int, Launch]] = []
        self._tasks = {item.launch.task: (self._pool[int(item.trial.task_id)], item.trial.streak) for item in back}
        self._scheduler = StepScheduler(
            self._plan,
            supply,
            self.now,
            running=[item.launch for item in back if item.resumed],
            first=[item.launch for item in back if not item.resumed],
        )
        for item in back:
            if item.resumed:
                running = carried[str(item.trial.trial_id)]
                self._go_on(replace(running, launch=item.launch, origin=Origin.RESUMED, streak=item.trial.streak))

    def _launch(self, launch: Launch) -> None:
        origin = Origin.DRAWN if launch.task < self._plan.limit + self._plan.batch else Origin.RETURNED
        if launch.task not in self._tasks:
            self._tasks[launch.task] = self._draw(), 0
        task, streak = self._tasks[launch.task]
        kind = self._kinds[task.difficulty]
        seconds = float(self._random.lognormal(kind.mu, kind.sigma))
        name = str(next(self._names))
        self._go_on(_Running(name, task, launch, origin, streak, seconds, self.now))

    def _go_on(self, running: _Running) -> None:
        """A trial runs from now on."""
        running.since = self.now
        self._alive[running.launch] = running
        heapq.heappush(self._ends, (self.now + running.left_s, next(self._names), running.launch))
        self._ledger.launch(running.trial_id, running.task, 1, origin=running.origin, streak=running.streak)

    def _end_next(self) -> None:
        self.now, _, launch = heapq.heappop(self._ends)
        running = self._stop(launch)
        if self._scheduler.completed(launch):
            self._ledger.end(running.trial_id, Outcome.ADMITTED)
        else:
            self._pass_over(running)

    def _leave(self, running: _Running) -> None:
        """The step is over while it runs."""
        self._stop(running.launch)
        tell = self._scheduler.carried_by if self._plan.tail is Tail.CARRY else self._scheduler.cancelled_by
        tell(running.launch)
        self._pass_over(running)

    def _stop(self, launch: Launch) -> _Running:
        running = self._alive.pop(launch)
        ran = self.now - running.since
        self.busy_s += ran
        running.left_s = max(0.0, running.left_s - ran)
        return running

    def _pass_over(self, running: _Running) -> None:
        over = self._anew(running.launch)
        if self._plan.tail is Tail.CARRY:
            over = replace(over, trial_id=running.trial_id)
            self._carried[running.trial_id] = running
            resumed = running.origin is Origin.RESUMED
            self._ledger.end(running.trial_id, Outcome.CONTINUED if resumed else Outcome.CARRIED)
        else:
            self._ledger.end(running.trial_id, Outcome.CANCELLED)
        self._over.append(over)

    def _anew(self, launch: Launch) -> Unfinished:
        task, streak = self._tasks[launch.task]
        return Unfinished(task.task_id, None, launch.member, streak + 1)

    def _draw(self) -> TaskRef:
        """The pool's next task, of a random kind."""
        index = bisect.bisect(self._bounds[:-1], self._random.random())
        name = list(self._kinds)[index]
        self._pool.append(TaskRef("pool", str(len(self._pool)), "", "simulated", difficulty=name))
        return self._pool[-1]
