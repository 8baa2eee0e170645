"""Rejection sampling: trials of the training tasks, by the checkpoint or a teacher, and of them what SFT learns from.

A pass tries every task once, on the path that rollouts take: scheduler, boxes, harness, verifier, ledger.

Invariant: a trial that has ended is on disk before it counts; an attempt after a killed one runs the others alone. A
pass is in the store, with its ledger, before its record. What is selected follows from the passes and the seed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from components.config import CampaignConfig, RejectionConfig, RolloutConfig
from components.curation import Endpoint
from components.errors import ConfigError, DriftError, FaultCause, InfraFault
from components.gateway import Trajectory
from components.harness import run_trial, template_for, wording_for
from components.joblog import about
from components.jobs.job import Job, log, main
from components.jobs.world import Drawing, World, open_world, require_vocabulary
from components.learning.batch import reward_of
from components.learning.corpus import CORPUS, save_corpus
from components.naming import fates_key, pass_key, samples_key
from components.pool import Cursor, Pool, Task
from components.records import Reward, Sample, Sampling, Trial
from components.rejection import (
    Account,
    BudgetSpent,
    Graded,
    LeftOut,
    Selection,
    Teacher,
    check_rendered,
    check_sampled,
    choose,
    faulted,
)
from components.rollout import (
    Attempt,
    Barrier,
    FinishedTrials,
    LedgerRow,
    Rollout,
    load_batch,
    rollout_metrics,
    save_batch,
    trial_id,
    trial_tokens,
)
from components.sandbox import SandboxBackend, open_backend
from components.tito import BpeTokenizer, stitch

STAGE = "rejection"
DRIFT = "drift"
"""The fact of a teacher's trial that says what is wrong with its record."""
TOLD = 500
"""Trials left out that the result tells of; the table in the store holds all."""
DETAIL_CHARS = 500

Played = tuple[Trial, Sequence[Sample]]
Play = Callable[[Attempt[Task]], Awaitable[Played]]
"""Runs one trial; its streams are checked, and are none where it has faulted."""


def stage(job: Job) -> dict[str, Any]:
    """Result: {"samples", "trials", "kept", "streams", "tried", "graded", "passed", "pass_rate", "tasks",
    "tasks_kept", "passes", "left_out" (by reason), "told" (why, trial by trial), "teacher"}.

    `samples` is a corpus, and `trials` a table of every trial with what became of it.
    """
    wanted = _wanted(job.config)
    tasks = _tasks(job, wanted)
    spent = asyncio.run(_passes(job, wanted, tasks))
    graded, without = _graded(job)
    chosen = choose(graded, wanted, seed=job.config.seed)
    selection = replace(chosen, left_out=(*without, *chosen.left_out))
    found = _counted(graded, selection, len(tasks))
    job.commit(STAGE, wanted.attempts, _metrics(found), total=wanted.attempts + 1)
    if not selection.kept:
        causes = ", ".join(f"{reason} {count}" for reason, count in selection.counts().items() if count) or "no pass"
        raise ConfigError([f"none of {found['tried']} trials can be learned from: {causes}"], "sft.rejection")
    return {**_stored(job, graded, selection), **found, "passes": len(_done(job, wanted)), "teacher": spent}


def _wanted(config: CampaignConfig) -> RejectionConfig:
    assert config.sft.rejection is not None, "the stage runs only where sft.rejection asks for it"
    return config.sft.rejection


def _tasks(job: Job, wanted: RejectionConfig) -> list[Task]:
    pool = Pool(job.store.tree(job.inputs["pool"]) / "train")
    refs, _ = pool.draw(Cursor(job.config.seed), min(wanted.tasks or len(pool), len(pool)))
    return [pool.load(ref.task_id) for ref in refs]


def _key(job: Job, number: int) -> str:
    return pass_key(job.campaign, number)


def _done(job: Job, wanted: RejectionConfig) -> list[int]:
    """Passes that are committed. The record after the last one is that of the selection."""
    return [number for number in job.committed(STAGE) if number < wanted.attempts]


async def _passes(job: Job, wanted: RejectionConfig, tasks: Sequence[Task]) -> dict[str, Any] | None:
    """Makes every pass that is not committed, or as many as the budget allows; gives what a teacher has cost."""
    done = _done(job, wanted)
    left = [number for number in range(wanted.attempts) if number not in done]
    account = None if wanted.teacher is None else Account(wanted.teacher, job.folder / "account.jsonl")
    if left:
        async with _source(job, account, first=left[0]) as play:
            passes = _Passes(job, tasks, play)
            for number in left:
                with about(step=number):
                    paid = await passes.run(number, wanted.attempts + 1)
                if not paid:
                    log.warning("the teacher's budget is spent: pass %d of %d is the last", number + 1, wanted.attempts)
                    break
    return None if account is None else account.to_json()


@asynccontextmanager
async def _source(job: Job, account: Account | None, *, first: int) -> AsyncIterator[Play]:
    """Who plays: a teacher where there is an account of one, else the checkpoint. `first` is the first pass."""
    config, checkpoint = job.config, job.store.tree(job.inputs["checkpoint"])
    if config.sampler.placement == "ray" and account is None:
        ray.init(address="auto", logging_level="warning")
    async with AsyncExitStack() as stack:
        if account is None:
            drawing = Drawing(seed=config.sampler_seed(STAGE, first), routing=False, tell=log.warning)
            world = await stack.enter_async_context(open_world(config, checkpoint, job.folder, drawing))
            yield _Checkpoint(world).play
            return
        teacher = _wanted(config).teacher
        assert teacher is not None, "the account is one of a teacher's"
        endpoint = await stack.enter_async_context(Endpoint(teacher))
        tokenizer = BpeTokenizer.load(checkpoint)
        require_vocabulary(config, checkpoint, tokenizer)
        backend = await open_backend(config.sandbox, job.folder)
        stack.push_async_callback(backend.close)
        yield _Taught(config, backend, endpoint, account, tokenizer).play


@dataclass(frozen=True)
class _Checkpoint:
    """The checkpoint's own trials."""

    world: World

    async def play(self, attempt: Attempt[Task]) -> Played:
        """Raises DriftError when what was recorded may not be trained on."""
        sampling = Sampling(temperature=self.world.config.rollout.temperature)
        trial = await self.world.run(attempt, sampling, capture=False)
        if trial.fault is not None:
            return trial, ()
        samples = stitch(trial.turns, self.world.tokenizer, trial_id=trial.trial_id)
        check_sampled(trial.turns, samples, self.world.tokenizer)
        return trial, samples


@dataclass(frozen=True)
class _Taught:
    """A teacher's trials. One whose text our tokens cannot hold is graded, and says so: it was paid for."""

    config: CampaignConfig
    backend: SandboxBackend
    endpoint: Endpoint
    account: Account
    tokenizer: BpeTokenizer

    async def play(self, attempt: Attempt[Task]) -> Played:
        """Raises BudgetSpent, where no answer can be paid for before a box is started."""
        if self.account.empty:
            raise BudgetSpent("the teacher's budget is spent")
        config, template = self.config, template_for(self.tokenizer, self.config.harness)
        trajectory = Trajectory(Teacher(self.endpoint, self.account, template, attempt.time), template)
        trial = await run_trial(
            attempt.task,
            trial_id=attempt.trial_id,
            backend=self.backend,
            trajectory=trajectory,
            config=config.harness,
            sandbox=config.sandbox,
            agent_timeout_s=config.rollout.agent_timeout_s,
            verifier_timeout_s=config.rollout.verifier_timeout_s,
            progress=attempt.progress,
            time=attempt.time,
        )
        if trial.fault is not None:
            return trial, ()
        samples = stitch(trial.turns, self.tokenizer, trial_id=trial.trial_id)
        try:
            await asyncio.to_thread(check_rendered, trajectory, samples, self.tokenizer)
        except DriftError as error:
            return replace(trial, facts={**trial.facts, DRIFT: str(error)}), samples
        return trial, samples


@dataclass
class _Passes:
    """The passes of one process over the tasks."""

    job: Job
    tasks: Sequence[Task]
    play: Play
    unpaid: set[str] = field(default_factory=set)
    reused: int = 0
    streams: dict[str, Sequence[Sample]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.finished = FinishedTrials(self.job.folder / "finished" / self.job.lineage(STAGE))

    async def run(self, number: int, total: int) -> bool:
        """Makes a pass and commits it. False: the budget was spent on the way, or before.

        Raises:
            InfraFault: more tasks than `rollout.max_fault_share` have no verdict. Tried again, it runs these alone.
            DriftError: the records of more trials than `rollout.max_rejected_share` are not of what was sampled.
        """
        job, self.streams, self.unpaid, self.reused = self.job, {}, set(), 0
        rollout: Rollout[Task] = Rollout(
            campaign=f"{job.campaign}/{STAGE}",
            config=_whole(job.config, len(self.tasks)),
            run_trial=lambda attempt: self._run(number, attempt),
            barrier=Barrier(),
        )
        try:
            result = await rollout.step(number, 0, self.tasks)
        except InfraFault:
            if self.unpaid:
                return False
            raise
        lost = len(self.tasks) - len(result.trials)
        if lost > job.config.rollout.max_fault_share * len(self.tasks) and not self.unpaid:
            raise _lost(result.ledger.rows, lost, len(self.tasks))
        rewards = [reward_of(trial, job.config.reward) for trial in result.trials]
        samples = [sample for trial in result.trials for sample in self.streams[trial.trial_id]]
        folder = job.folder / "passes" / f"{number:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        save_batch(folder, result.trials, samples, rewards, result.ledger)
        job.store.put_tree(_key(job, number), folder)
        metrics = rollout_metrics(result.trials, rewards, result.ledger, seconds=result.seconds)
        metrics["rollout/reused"] = float(self.reused)
        job.commit(STAGE, number, metrics, total=total, unpaid=sorted(self.unpaid))
        log.info("pass %d: %d of %d passed, %d faults", number + 1, *_passed(rewards), lost)
        return not self.unpaid

    async def _run(self, number: int, attempt: Attempt[Task]) -> Trial:
        """A trial from disk, where an attempt before this one has finished it, or played now."""
        name = attempt.trial_id
        if (known := self._known(number, attempt)) is not None:
            return known
        try:
            with about(trial=name):
                trial, samples = await self.play(attempt)
        except BudgetSpent as error:
            self.unpaid.add(name)
            return Trial(name, attempt.task.ref, (), None, None, InfraFault(FaultCause.SAMPLER, str(error)))
        if trial.fault is None:
            reward = reward_of(trial, self.job.config.reward)
            await asyncio.to_thread(self.finished.put, number, trial, samples, reward)
            self.streams[name] = samples
        return trial

    def _known(self, number: int, attempt: Attempt[Task]) -> Trial | None:
        """A trial of this task that ended in this pass, whichever launch it was after how many faults."""
        name, task = attempt.trial_id, attempt.task.ref.task_id
        launches = range(1, self.job.config.rollout.max_attempts + 1)
        names = [trial_id(f"{self.job.campaign}/{STAGE}", number, task, launch) for launch in launches]
        found = next((found for each in names if (found := self.finished.get(each)) is not None), None)
        if found is None:
            return None
        self.streams[name] = [replace(sample, trial_id=name) for sample in found.samples]
        attempt.progress.turns, attempt.progress.tokens = len(found.trial.turns), trial_tokens(found.trial)
        self.reused += 1
        return replace(found.trial, trial_id=name)


def _whole(config: CampaignConfig, tasks: int) -> RolloutConfig:
    """The scheduler of a pass: it waits for every task, and leaves it to the pass how many may have no verdict."""
    changes = {"batch": tasks, "oversample": 0.0, "tail": "cancel", "per_node": None}
    return config.rollout.model_copy(update={**changes, "max_fault_share": float(config.rollout.max_attempts)})


def _lost(rows: Sequence[LedgerRow], lost: int, tasks: int) -> InfraFault:
    faults = [row for row in rows if row.fault is not None]
    causes = [row.fault for row in faults]
    cause = max(causes, key=causes.count) or FaultCause.SANDBOX
    last = next(row for row in reversed(faults) if row.fault == cause)
    return InfraFault(cause, f"{lost} of {tasks} tasks have no verdict; the last: {last.detail}")


def _passed(rewards: Sequence[Reward]) -> tuple[int, int]:
    return sum(reward.outcome for reward in rewards), len(rewards)


def _graded(job: Job) -> tuple[list[Graded], list[LeftOut]]:
    """Every trial of the committed passes: those with a verdict, and those without."""
    tokenizer = BpeTokenizer.load(job.store.tree(job.inputs["checkpoint"]))
    template, wording = template_for(tokenizer, job.config.harness), wording_for(job.config.harness)
    graded: list[Graded] = []
    without: list[LeftOut] = []
    for number in _done(job, _wanted(job.config)):
        with job.store.borrowed(_key(job, number)) as folder:
            batch = load_batch(folder)
        without += faulted(batch.ledger.rows, job.record(STAGE, number)["unpaid"])
        streams: dict[str, list[Sample]] = {}
        for sample in batch.samples:
            streams.setdefault(sample.trial_id, []).append(sample)
        for trial, reward in zip(batch.trials, batch.rewards, strict=True):
            answers = [wording.parse(template.answer_text(turn.completion_ids)) for turn in trial.turns]
            commands = tuple(command.keystrokes for answer in answers for command in answer.commands)
            samples = tuple(streams.get(trial.trial_id, ()))
            graded.append(Graded(trial, samples, reward, commands, trial.facts.get(DRIFT)))
    return graded, without


def _counted(graded: Sequence[Graded], selection: Selection, tasks: int) -> dict[str, Any]:
    """The figures of the result. A rate of nothing is None."""
    passed = sum(each.reward.outcome for each in graded)
    return {
        "tried": len(selection.kept) + len(selection.left_out),
        "graded": len(graded),
        "passed": passed,
        "pass_rate": passed / len(graded) if graded else None,
        "tasks": tasks,
        "tasks_kept": len({each.trial.task.task_id for each in selection.kept}),
        "kept": len(selection.kept),
        "streams": sum(len(each.samples) for each in selection.kept),
        "left_out": selection.counts(),
    }


def _metrics(found: Mapping[str, Any]) -> dict[str, float]:
    """The series of the selection; what was not measured is absent."""
    figures = {name: value for name, value in found.items() if name != "left_out"}
    figures |= {f"left_out/{reason}": count for reason, count in found["left_out"].items()}
    return {f"{STAGE}/{name}": float(value) for name, value in figures.items() if value is not None}


def _stored(job: Job, graded: Sequence[Graded], selection: Selection) -> dict[str, Any]:
    """Puts the corpus, and what became of every trial, into the store."""
    folder = job.folder / "samples"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_corpus(folder / CORPUS, [sample for each in selection.kept for sample in each.samples])
    samples, table = samples_key(job.campaign), fates_key(job.campaign)
    job.store.put_tree(samples, folder)
    known = {each.trial.trial_id: each for each in graded}
    fates = [(each.trial.trial_id, each.trial.task.task_id, "kept", "") for each in selection.kept]
    fates += [(each.trial_id, each.task_id, str(each.reason), each.detail) for each in selection.left_out]
    rows = [_row(known.get(name), name, task, fate, detail) for name, task, fate, detail in fates]
    job.store.put_json(table, rows)
    left_out = [row for row in rows if row["fate"] != "kept"]
    return {"samples": samples, "trials": table, "told": left_out[:TOLD]}


def _row(each: Graded | None, trial: str, task: str, fate: str, detail: str) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": trial, "task": task, "fate": fate, "detail": detail[:DETAIL_CHARS]}
    if each is not None:
        tokens = sum(len(sample.tokens) for sample in each.samples)
        row |= {"reward": each.reward.value, "solved": each.reward.outcome}
        row |= {"turns": len(each.trial.turns), "tokens": tokens, "stop": str(each.trial.stop)}
    return row


if __name__ == "__main__":
    main(stage)
