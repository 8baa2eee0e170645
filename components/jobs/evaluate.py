"""Evaluates one checkpoint on held-out tasks, through the same harness that trains."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import ray

from components.evaluation import SuiteScore, aggregate, evaluate, sampling_of
from components.jobs.job import Job, log, main
from components.jobs.world import Drawing, open_world
from components.learning.batch import reward_of
from components.pool import Pool, Task
from components.records import Trial
from components.rollout import Attempt, Ledger, Origin, Outcome, save_batch, trial_id, trial_tokens

STAGE = "evaluate"


def stage(job: Job) -> dict[str, Any]:
    """Result: the score's main figures, the whole score, and where the trials lie."""
    checkpoint = job.store.tree(job.inputs["checkpoint"])
    pool = Pool(job.store.tree(job.inputs["pool"]) / "heldout")
    refs = pool.sample(int(job.inputs["trials"]), seed=0)
    tasks = [pool.load(ref.task_id) for ref in refs]
    trials = asyncio.run(_run(job, checkpoint, tasks))
    score = aggregate(trials, job.config.reward)
    key = job.key(STAGE, job.inputs["label"], "trials")
    _keep(job, key, trials)
    log.info("%s: resolved %s of %d, %d faults", job.inputs["label"], _percent(score), score.trials, score.faults)
    return _result(job, score, key)


async def _run(job: Job, checkpoint: Path, tasks: list[Task]) -> list[Trial]:
    sampling = sampling_of(job.config.evaluation)
    label = job.inputs["label"]
    if job.config.sampler.placement == "ray":
        ray.init(address="auto", logging_level="warning")
    drawing = Drawing(seed=job.config.seed * 1_000 + 500 + job.index, routing=False, tell=log.warning)
    async with open_world(job.config, checkpoint, job.folder, drawing) as world:

        async def attempt(task: Task, number: int, tried: int) -> Trial:
            name = trial_id(f"{job.campaign}/{label}", number, task.ref.task_id, tried)
            return await world.run(Attempt(task, name, tried), sampling, capture=False)

        return await evaluate(tasks, attempt, concurrency=job.config.rollout.concurrency)


def _keep(job: Job, key: str, trials: list[Trial]) -> None:
    """Puts the graded trials into the store, so that every figure can be traced to a trajectory."""
    graded = [trial for trial in trials if trial.report is not None]
    ledger = Ledger(0)
    for trial in trials:
        ledger.launch(trial.trial_id, trial.task, 1, origin=Origin.DRAWN)
        outcome = Outcome.ADMITTED if trial.fault is None else Outcome.INFRA_FAULT
        cause = None if trial.fault is None else trial.fault.cause
        ledger.end(
            trial.trial_id,
            outcome,
            turns=len(trial.turns),
            tokens=trial_tokens(trial),
            seconds=sum(trial.timings_s.values()),
            stop=trial.stop,
            fault=cause,
        )
    folder = job.folder / "trials"
    shutil.rmtree(folder, ignore_errors=True)
    save_batch(folder, graded, [], [reward_of(trial, job.config.reward) for trial in graded], ledger)
    job.store.put_tree(key, folder)


def _result(job: Job, score: SuiteScore, key: str) -> dict[str, Any]:
    return {
        "suite": job.config.evaluation.profile,
        "label": job.inputs["label"],
        "checkpoint": job.inputs["checkpoint"],
        "n": score.trials,
        "pass_rate": score.resolved,
        "stderr": score.stderr,
        "mean_reward": score.mean_reward,
        "assertions_passed": score.assertions_passed,
        "turns_mean": score.turns_mean,
        "infra_rate": score.infra_rate,
        "by_category": {name: item.resolved for name, item in score.by_category.items()},
        "metrics": score.metrics(job.config.evaluation.profile),
        "score": score.to_json(),
        "trials": key,
    }


def _percent(score: SuiteScore) -> str:
    return "nothing" if score.resolved is None else f"{score.resolved:.1%}"


if __name__ == "__main__":
    main(stage)
