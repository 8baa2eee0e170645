"""One step's rollouts, run: the asyncio shell around the scheduler's state machine.

Invariant: when `run_step` returns or raises, nothing that it started is alive, and every launched trial has its row in
the ledger. Events arrive through callbacks; nothing polls.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from components.config import RolloutConfig
from components.errors import FaultCause, InfraFault
from components.harness.loop import Progress
from components.records import TaskRef, Trial
from components.rollout.ledger import Ledger, Outcome
from components.rollout.scheduler import Finish, FinishReason, Launch, Plan, StepScheduler, Wait


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


RunTrial = Callable[[Attempt[T]], Awaitable[Trial]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought.

    Attributes:
        trials: the admitted ones, in the order of their completion.
        ledger: a row for every launched one.
        consumed: how many tasks of the supply were used; the data cursor advances by it.
        seconds: from the first launch to the last cleanup.
    """

    trials: tuple[Trial, ...]
    ledger: Ledger
    consumed: int
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
    )


async def run_step(
    tasks: Sequence[T],
    *,
    campaign: str,
    step: int,
    config: RolloutConfig,
    run_trial: RunTrial[T],
    group: int = 1,
) -> StepResult:
    """Launches ⌈(1+ς)B⌉ trials, `group` a task, admits the first B that complete and cancels the rest.

    `tasks` is the supply in the order of use; those past what is launched replace tasks whose launches keep faulting.

    Raises:
        InfraFault: too large a share of the trials faulted, or no trial could be completed; the commonest cause is
            named. Everything launched has ended by then.
    """
    shell = _Step(tasks, campaign, step, config, run_trial, group)
    try:
        finish = await shell.drive()
    finally:
        await shell.quiesce()
    shell.ledger.check()
    if finish.reason is FinishReason.FAULTS or not shell.trials:
        faulted, launched = shell.scheduler.faulted, shell.scheduler.launched
        raise InfraFault(shell.commonest_cause(), f"step {step}: {finish.reason.value} ({faulted} of {launched})")
    return StepResult(tuple(shell.trials), shell.ledger, shell.scheduler.consumed, time.monotonic() - shell.started)


class _Step(Generic[T]):
    def __init__(
        self, tasks: Sequence[T], campaign: str, step: int, config: RolloutConfig, run_trial: RunTrial[T], group: int
    ) -> None:
        self.started = time.monotonic()
        self.ledger = Ledger(step)
        self.trials: list[Trial] = []
        self.scheduler = StepScheduler(plan_of(config, group), len(tasks), self.started)
        self._tasks = tasks
        self._earlier = _occurrences(tasks)
        self._campaign = campaign
        self._step = step
        self._config = config
        self._run_trial = run_trial
        self._alive: dict[asyncio.Task[Trial], tuple[Launch, Attempt[T], float]] = {}
        self._ended: deque[asyncio.Task[Trial]] = deque()
        self._event = asyncio.Event()

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

    async def quiesce(self) -> None:
        """Cancels what is alive and waits until it is gone, even when cancelled itself meanwhile."""
        for task in self._alive:
            task.cancel()
        interrupted = False
        while pending := [task for task in self._alive if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                interrupted = True
        for task in list(self._alive):
            self._settle(task, raise_errors=False)
        if interrupted:
            raise asyncio.CancelledError

    def commonest_cause(self) -> FaultCause:
        causes = [row.fault for row in self.ledger.rows if row.fault is not None]
        return max(causes, key=causes.count) if causes else FaultCause.SANDBOX

    def _launch(self, launch: Launch) -> None:
        task = self._tasks[launch.task]
        plan = self.scheduler.plan
        number = (self._earlier[launch.task] * plan.group + launch.member) * plan.max_attempts + launch.attempt
        name = trial_id(self._campaign, self._step, task.ref.task_id, number)
        attempt = Attempt(task, name, number)
        self.ledger.launch(name, task.ref, number, retry=launch.attempt > 1)
        running = asyncio.create_task(self._bounded(attempt), name=f"trial-{name}")
        self._alive[running] = (launch, attempt, time.monotonic())
        running.add_done_callback(self._on_end)

    async def _bounded(self, attempt: Attempt[T]) -> Trial:
        """The outermost deadline: what runs past it hangs in the infrastructure, not in the agent."""
        limit = self._config.remote_timeout_s
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await self._run_trial(attempt)
        except InfraFault as error:
            fault = error
        except TimeoutError:
            if not deadline.expired():
                raise
            fault = InfraFault(FaultCause.SANDBOX, f"trial passed its remote deadline of {limit:g} s")
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
        entry = self._alive.pop(task, None)
        if entry is None:
            return
        launch, attempt, started = entry
        facts = {"turns": attempt.progress.turns, "tokens": attempt.progress.tokens}
        seconds = time.monotonic() - started
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.scheduler.cancelled_by(launch)
            detail = "" if error is None else f"{type(error).__name__}: {error}"
            self.ledger.end(attempt.trial_id, Outcome.CANCELLED, seconds=seconds, detail=detail, **facts)
            if error is not None and raise_errors:
                raise error
            return
        trial = task.result()
        if trial.fault is not None:
            self.scheduler.faulted_by(launch)
            outcome, fault, detail = Outcome.INFRA_FAULT, trial.fault.cause, trial.fault.detail
        else:
            admitted = self.scheduler.completed(launch)
            outcome, fault = (Outcome.ADMITTED if admitted else Outcome.CANCELLED), None
            detail = "" if admitted else "completed after the batch was full"
            if admitted:
                self.trials.append(trial)
        self.ledger.end(
            attempt.trial_id, outcome, seconds=seconds, stop=trial.stop, fault=fault, detail=detail, **facts
        )


def _occurrences(tasks: Sequence[HasRef]) -> list[int]:
    """How often each task stands earlier in the supply: a step that spans two epochs can hold one twice."""
    seen: Counter[str] = Counter()
    earlier = []
    for task in tasks:
        earlier.append(seen[task.ref.task_id])
        seen[task.ref.task_id] += 1
    return earlier
