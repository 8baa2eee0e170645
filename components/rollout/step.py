"""Rollouts, run: the asyncio shell around the scheduler's state machine, step after step.

Invariants: when a step returns, every trial that was alive in it has its row in the ledger, and nothing is alive but
what it carries, which waits at the barrier with no draw in flight. When it raises, nothing at all is alive. Events
arrive through callbacks; nothing polls.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from components.config import RolloutConfig
from components.errors import DriftError, FaultCause, InfraFault, RecordError, StopReason, StoreError
from components.harness import Progress, RunningTime
from components.outcomes import REJECTIONS, Raised, TrialOverdue, fault_of
from components.records import TaskRef, Trial
from components.rollout.barrier import Barrier
from components.rollout.carryover import Return, Unfinished, returns
from components.rollout.ledger import Ledger, Origin, Outcome
from components.rollout.resumption import Interrupted
from components.rollout.scheduler import Finish, FinishReason, Launch, Plan, StepScheduler, Tail, Wait


class HasRef(Protocol):
    """A task, as far as the scheduler cares."""

    @property
    def ref(self) -> TaskRef: ...


T = TypeVar("T", bound=HasRef)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """One launch of one task, as handed to the function that runs it."""

    task: T
    trial_id: str
    attempt: int
    progress: Progress = field(default_factory=Progress)
    time: RunningTime = field(default_factory=RunningTime)


RunTrial = Callable[[Attempt[T]], Awaitable[Trial]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought.

    Attributes:
        trials: the admitted ones, in the order of their completion.
        ledger: a row for every one that was alive in the step.
        consumed: how many tasks of the supply were used; the data cursor advances by it.
        unfinished: what the next step begins with.
        seconds: from the first launch to the last cleanup.
    """

    trials: tuple[Trial, ...]
    ledger: Ledger
    consumed: int
    unfinished: tuple[Unfinished, ...]
    seconds: float


def trial_id(campaign: str, step: int, task_id: str, attempt: int) -> str:
    """The same work has the same id, in whichever process it is tried."""
    return hashlib.sha256(f"{campaign}\0{step}\0{task_id}\0{attempt}".encode()).hexdigest()[:16]


def plan_of(config: RolloutConfig, group: int = 1) -> Plan:
    return Plan.of(
        config.batch,
        group=group,
        oversample=config.oversample,
        concurrency=config.concurrency,
        starts_per_s=config.starts_per_s,
        max_attempts=config.max_attempts,
        max_fault_share=config.max_fault_share,
        max_rejected_share=config.max_rejected_share,
        tail=Tail(config.tail),
    )


@dataclass(slots=True)
class _Running(Generic[T]):
    """A trial that is alive, or has ended and is not settled. `launch` is that of the current step."""

    task: asyncio.Task[Trial]
    attempt: Attempt[T]
    launch: Launch
    origin: Origin
    streak: int
    started: float
    note: str = ""
    """What became of it in a process before this one."""

    @property
    def seconds(self) -> float:
        """How long it has run, pauses left out."""
        return time.monotonic() - self.started - self.attempt.time.paused_s


class Rollout(Generic[T]):
    """The rollouts of a leg. What one step carries lives here until the next. Use within one event loop.

    Args:
        barrier: what `run_trial` passes before every turn.
        finished: ids of trials that `run_trial` gives without running them: an earlier attempt at their step did.
        interrupted: trials that were alive when an earlier attempt was killed. Those that can go on `run_trial` goes on
            with.
    """

    def __init__(
        self,
        *,
        campaign: str,
        config: RolloutConfig,
        run_trial: RunTrial[T],
        barrier: Barrier,
        group: int = 1,
        finished: Container[str] = (),
        interrupted: Interrupted | None = None,
    ) -> None:
        self.campaign = campaign
        self.config = config
        self.plan = plan_of(config, group)
        self.run_trial = run_trial
        self.finished = finished
        self.interrupted = interrupted
        self._barrier = barrier
        self._carried: dict[str, _Running[T]] = {}

    async def step(
        self, step: int, version: int, tasks: Sequence[T], returning: Sequence[tuple[T, Unfinished]] = ()
    ) -> StepResult:
        """Launches ⌈(1+ς)B⌉ trials, admits the first B that complete, and does with the rest what `tail` says.

        Args:
            version: of the weights that every turn of this step is drawn under.
            tasks: the supply, in the order of use; those past what is launched replace tasks whose launches keep
                faulting.
            returning: what the step before left unfinished, each with its task. One that neither waits here nor can
                be gone on with, because its process and its sandbox died, starts anew.

        Raises:
            InfraFault: too large a share of the trials faulted, or no trial could be completed; the commonest cause is
                named. Everything launched has ended by then.
            DriftError: more trials than `rollout.max_rejected_share` allows were rejected.
        """
        trials = [trial for _, trial in returning]
        carried, self._carried = self._carried, {}
        alive = {*carried, *(self.interrupted.attempts if self.interrupted else ())}
        back = returns(trials, alive, self.plan, len(tasks), max_streak=self.config.max_streak)
        assert carried.keys() <= {trial.trial_id for trial in trials}, "a carried trial does not return"
        shell = _Step(self, step, [*tasks, *(task for task, _ in returning)], len(tasks), back, carried)
        try:
            self._barrier.open(version)
            finish = await shell.drive()
            if finish.reason is FinishReason.FULL and self.plan.tail is Tail.CARRY:
                await self._barrier.close()
                self._carried = shell.carry()
        finally:
            await shell.quiesce()
        shell.ledger.check()
        if finish.reason is FinishReason.REJECTED:
            raise DriftError(shell.rejections())
        if finish.reason is FinishReason.FAULTS or not shell.trials:
            faulted, launched = shell.scheduler.faulted, shell.scheduler.launched
            raise InfraFault(shell.commonest_cause(), f"step {step}: {finish.reason.value} ({faulted} of {launched})")
        seconds = time.monotonic() - shell.started
        return StepResult(tuple(shell.trials), shell.ledger, shell.scheduler.consumed, shell.passed_over(), seconds)


class _Step(Generic[T]):
    def __init__(
        self,
        rollout: Rollout[T],
        step: int,
        tasks: Sequence[T],
        supply: int,
        back: Sequence[Return],
        carried: dict[str, _Running[T]],
    ) -> None:
        self.started = time.monotonic()
        self.ledger = Ledger(step)
        self.trials: list[Trial] = []
        self._unfinished: list[Unfinished] = []
        self._kept: dict[str, _Running[T]] = {}
        self._rollout = rollout
        self._step = step
        self._tasks = tasks
        self._earlier = _occurrences(tasks)
        self._back = {item.launch.task: item.trial for item in back}
        self._running: dict[asyncio.Task[Trial], _Running[T]] = {}
        self._ended: deque[asyncio.Task[Trial]] = deque()
        self._event = asyncio.Event()
        self._names: set[str] = set()
        resumed = [item for item in back if item.resumed]
        self.scheduler = StepScheduler(
            rollout.plan,
            supply,
            self.started,
            running=[item.launch for item in resumed],
            first=[item.launch for item in back if not item.resumed],
        )
        for item in resumed:
            self._resume(carried.get(str(item.trial.trial_id)), item)

    async def drive(self) -> Finish:
        """Until the state machine says that the step is over."""
        while True:
            while self._ended:
                self._settle(self._ended.popleft())
            match self.scheduler.next(time.monotonic()):
                case Launch() as launch:
                    self._launch(launch)
                case Wait(until):
                    await self._next_event(until)
                case Finish() as finish:
                    return finish

    def carry(self) -> dict[str, _Running[T]]:
        """Takes what is alive, or has ended and found no place, out of the step. Nothing draws."""
        while self._ended:
            self._settle(self._ended.popleft())
        for running in list(self._running.values()):
            self.scheduler.carried_by(running.launch)
            self._keep(running)
        return self._kept

    def passed_over(self) -> tuple[Unfinished, ...]:
        """What the next step begins with: trials that go on, and tasks that start anew."""
        if self._rollout.plan.tail is Tail.CANCEL:
            return ()
        waiting = [self._anew(launch) for launch in self.scheduler.waiting]
        return (*self._unfinished, *waiting)

    async def quiesce(self) -> None:
        """Cancels what is alive and waits until it is gone, even when cancelled itself meanwhile."""
        for task in self._running:
            task.cancel()
        interrupted = False
        while pending := [task for task in self._running if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                interrupted = True
        for task in list(self._running):
            self._settle(task, raise_errors=False)
        if interrupted:
            raise asyncio.CancelledError

    def commonest_cause(self) -> FaultCause:
        causes = [row.fault for row in self.ledger.rows if row.fault is not None]
        return max(causes, key=causes.count) if causes else FaultCause.SANDBOX

    def rejections(self) -> str:
        """What was rejected, and why the step ends over it."""
        rows = [row for row in self.ledger.rows if row.fault in REJECTIONS]
        causes = ", ".join(f"{cause} {n}" for cause, n in Counter(row.fault for row in rows).most_common())
        return (
            f"step {self._step}: {len(rows)} trials were rejected ({causes}) where rollout.max_rejected_share allows "
            f"{self._rollout.plan.max_rejected} of {self._rollout.plan.limit}: what is recorded is not what was "
            f"sampled, and nothing of the step is trained on. The first is trial {rows[0].trial_id}: {rows[0].detail}"
        )

    def _launch(self, launch: Launch) -> None:
        task = self._tasks[launch.task]
        name, number = self._identity(launch)
        before = self._back.get(launch.task)
        if before is not None and before.trial_id is not None and before.trial_id in self._rollout.finished:
            name = before.trial_id
        streak = 0 if before is None else before.streak
        origin = Origin.DRAWN if before is None else Origin.RETURNED
        if launch.attempt > 1:
            origin = Origin.RELAUNCHED
        note = ""
        if name not in self._rollout.finished:  # one that had ended goes on nowhere, and does not start anew
            note = self._note(name)
            if before is not None and before.trial_id is not None and launch.attempt == 1:
                note = note or self._note(before.trial_id)
        self.ledger.launch(name, task.ref, number, origin=origin, streak=streak)
        self._follow(self._begin(Attempt(task, name, number), launch, origin, streak, note))

    def _identity(self, launch: Launch) -> tuple[str, int]:
        """A launch's id, and which attempt at its task it is.

        What an earlier process did of this place comes first, whichever attempt it was there: a trial that had ended,
        then one that was alive. Each attempt of a place stands once in a step.
        """
        plan, interrupted = self._rollout.plan, self._rollout.interrupted
        first = (self._earlier[launch.task] * plan.group + launch.member) * plan.max_attempts
        task_id = self._tasks[launch.task].ref.task_id
        numbers = [first + launch.attempt, *range(first + 1, first + plan.max_attempts + 1)]
        named = {trial_id(self._rollout.campaign, self._step, task_id, number): number for number in numbers}
        free = [name for name in named if name not in self._names]
        ended = [name for name in sorted(free, key=named.__getitem__) if name in self._rollout.finished]
        alive = [] if interrupted is None else [name for name in free if name in interrupted.attempts]
        name = next(iter([*ended, *alive, *free]))
        self._names.add(name)
        return name, named[name]

    def _begin(self, attempt: Attempt[T], launch: Launch, origin: Origin, streak: int, note: str) -> _Running[T]:
        task = asyncio.create_task(self._bounded(attempt), name=f"trial-{attempt.trial_id}")
        return _Running(task, attempt, launch, origin, streak, time.monotonic(), note)

    def _note(self, trial_id: str) -> str:
        """What became of a trial whose process was killed; nothing of any other."""
        interrupted = self._rollout.interrupted
        return "" if interrupted is None else interrupted.note(trial_id)

    def _resume(self, running: _Running[T] | None, item: Return) -> None:
        """A trial of the step before goes on: it waits here, or another process was killed over it."""
        if running is None:
            name, interrupted = str(item.trial.trial_id), self._rollout.interrupted
            assert interrupted is not None, "what waits nowhere starts anew"
            attempt = Attempt(self._tasks[item.launch.task], name, interrupted.attempts[name])
            running = self._begin(attempt, item.launch, Origin.RESUMED, item.trial.streak, self._note(name))
        else:
            running.launch, running.origin, running.streak = item.launch, Origin.RESUMED, item.trial.streak
            running.note = ""
        attempt = running.attempt
        self.ledger.launch(
            attempt.trial_id, attempt.task.ref, attempt.attempt, origin=Origin.RESUMED, streak=running.streak
        )
        self._follow(running)

    def _follow(self, running: _Running[T]) -> None:
        self._running[running.task] = running
        running.task.add_done_callback(self._on_end)

    async def _bounded(self, attempt: Attempt[T]) -> Trial:
        """The outermost deadline: what runs past it hangs in the infrastructure, not in the agent."""
        seconds = self._rollout.config.remote_timeout_s
        limit = attempt.time.limit(seconds)
        try:
            async with limit:
                return await self._rollout.run_trial(attempt)
        except (InfraFault, StoreError, RecordError, DriftError) as error:
            if (fault := fault_of(Raised(error))) is None:
                raise
        except TimeoutError:
            if not limit.expired:
                raise
            fault = fault_of(TrialOverdue(seconds))
        return Trial(attempt.trial_id, attempt.task.ref, (), None, None, fault)

    def _on_end(self, task: asyncio.Task[Trial]) -> None:
        self._ended.append(task)
        self._event.set()

    async def _next_event(self, until: float | None) -> None:
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()

    def _settle(self, task: asyncio.Task[Trial], *, raise_errors: bool = True) -> None:
        """Reports the end of a trial to the state machine and the ledger."""
        running = self._running.pop(task, None)
        if running is None:
            return
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.scheduler.cancelled_by(running.launch)
            self._cancelled(running, "" if error is None else f"{type(error).__name__}: {error}")
            if error is not None and raise_errors:
                raise error
            return
        trial = task.result()
        if trial.fault is not None:
            self.scheduler.faulted_by(running.launch, rejected=trial.fault.cause in REJECTIONS)
            self._end(running, Outcome.INFRA_FAULT, fault=trial.fault.cause, detail=trial.fault.detail, stop=trial.stop)
        elif self.scheduler.completed(running.launch):
            self.trials.append(trial)
            self._end(running, Outcome.ADMITTED, stop=trial.stop)
        elif self._rollout.plan.tail is Tail.CARRY:
            self._keep(running)
        else:
            self._cancelled(running, "completed after the batch was full", stop=trial.stop)

    def _keep(self, running: _Running[T]) -> None:
        """A trial goes on in the next step."""
        self._running.pop(running.task, None)
        running.task.remove_done_callback(self._on_end)
        attempt, launch = running.attempt, running.launch
        self._kept[attempt.trial_id] = running
        self._unfinished.append(replace(self._anew(launch), trial_id=attempt.trial_id))
        resumed = running.origin is Origin.RESUMED
        self._end(running, Outcome.CONTINUED if resumed else Outcome.CARRIED)

    def _cancelled(self, running: _Running[T], detail: str, stop: StopReason | None = None) -> None:
        self._unfinished.append(self._anew(running.launch))
        self._end(running, Outcome.CANCELLED, detail=detail, stop=stop)

    def _anew(self, launch: Launch) -> Unfinished:
        """A place of a task's group that this step passes over."""
        before = self._back.get(launch.task)
        streak = 0 if before is None else before.streak
        return Unfinished(self._tasks[launch.task].ref.task_id, None, launch.member, streak + 1)

    def _end(
        self,
        running: _Running[T],
        outcome: Outcome,
        *,
        stop: StopReason | None = None,
        fault: FaultCause | None = None,
        detail: str = "",
    ) -> None:
        progress = running.attempt.progress
        self.ledger.end(
            running.attempt.trial_id,
            outcome,
            turns=progress.turns,
            tokens=progress.tokens,
            seconds=running.seconds,
            stop=stop,
            fault=fault,
            detail="; ".join(filter(None, (running.note, detail))),
        )


def _occurrences(tasks: Sequence[HasRef]) -> list[int]:
    """How often each task stands earlier in the supply: a step that spans two epochs can hold one twice."""
    seen: Counter[str] = Counter()
    earlier = []
    for task in tasks:
        earlier.append(seen[task.ref.task_id])
        seen[task.ref.task_id] += 1
    return earlier
