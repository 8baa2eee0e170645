"""Evaluates one checkpoint on held-out tasks or a suite, under the conditions of a profile.

Invariant: a job that is killed, and tried again, runs no trial again that had been graded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import ray

from components.config import CampaignConfig, RewardConfig, digest
from components.evaluation import (
    Conditions,
    Suite,
    SuiteScore,
    aggregate,
    conditions_of,
    evaluate,
    heldout,
    load_suite,
    sampling_of,
    under_profile,
    walled,
)
from components.jobs import harbor
from components.jobs.checkpoints import keep_tokenizer
from components.jobs.job import Job, log, main
from components.jobs.world import Drawing, World, open_world
from components.learning.batch import reward_of
from components.naming import evaluation_key
from components.outcomes import TrialOverdue, fault_of
from components.pool import Pool, Task
from components.records import Reward, Sampling, Trial
from components.rollout import (
    Attempt,
    FinishedTrials,
    Ledger,
    Origin,
    Outcome,
    save_batch,
    trial_id,
    trial_tokens,
)

NATIVE = "native"
TRIES = 2
"""Times a trial is run that the infrastructure keeps from a verdict."""


def stage(job: Job) -> dict[str, Any]:
    """Result: the score's main figures, what they were measured under, the whole score, and where the trials lie."""
    checkpoint = job.store.tree(job.inputs["checkpoint"])
    keep_tokenizer(job, checkpoint)
    config = under_profile(job.config)
    suite = _suite(job, config)
    for caveat in suite.caveats():
        log.warning("%s: %s", suite.name, caveat)
    native = config.evaluation.harness == NATIVE
    conditions = conditions_of(config, suite.name, NATIVE if native else harbor.harness(config))
    trials = asyncio.run(_run(job, config, checkpoint, suite)) if suite.tasks else []
    score = aggregate(trials, config.reward)
    key = _key(job, "trials")
    _keep(job, key, trials)
    ran = {} if native or not suite.tasks else {"harbor": _key(job, "harbor")}
    for place in ran.values():
        job.store.put_tree(place, harbor.kept(job, config, suite))
    told = job.inputs["label"], conditions.series, _percent(score), score.trials, score.faults
    log.info("%s on %s: resolved %s of %d, %d faults", *told)
    return _result(job, suite, conditions, score, key) | ran


def _suite(job: Job, config: CampaignConfig) -> Suite:
    """The suite that the inputs name; without a name, the pool's held-out tasks."""
    name = job.inputs.get("suite")
    if name is not None:
        return load_suite(config.evaluation.suite(name), config.sandbox)
    return heldout(Pool(job.store.tree(job.inputs["pool"]) / "heldout"), int(job.inputs["trials"]))


def _key(job: Job, part: str) -> str:
    """Of what the evaluation leaves."""
    return evaluation_key(job.campaign, job.inputs["label"], part, job.inputs.get("suite"))


async def _run(job: Job, config: CampaignConfig, checkpoint: Path, suite: Suite) -> list[Trial]:
    named = "/".join(part for part in (job.campaign, job.inputs["label"], job.inputs.get("suite")) if part)
    if config.sampler.placement == "ray":
        ray.init(address="auto", logging_level="warning")
    drawing = Drawing(seed=config.sampler_seed(job.stage, job.index), routing=False, tell=log.warning)
    if config.evaluation.harness != NATIVE:
        return await harbor.run_suite(job, config, checkpoint, suite, named=named, drawing=drawing)
    sampling, finished = sampling_of(config.evaluation), FinishedTrials(_finished(job))
    async with open_world(config, checkpoint, job.folder, drawing) as world:

        async def attempt(task: Task, number: int, tried: int) -> Trial:
            names = [trial_id(named, number, task.ref.task_id, each) for each in range(tried, TRIES + 1)]
            if (known := next(filter(None, map(finished.get, names)), None)) is not None:
                return known.trial
            trial = await _attempt(world, Attempt(walled(task, config.evaluation), names[0], tried), sampling)
            if trial.fault is None:
                await asyncio.to_thread(finished.put, number, trial, (), _reward(trial, job.config.reward))
            return trial

        return await evaluate(
            suite.tasks,
            attempt,
            attempts=config.evaluation.conditions.attempts,
            concurrency=config.rollout.concurrency,
            tries=TRIES,
        )


def _finished(job: Job) -> Path:
    """Where trials of this evaluation are kept until it has its result: of these inputs and conditions alone."""
    asked = json.dumps([digest(job.config), dict(job.inputs)], sort_keys=True)
    told = hashlib.sha256(asked.encode()).hexdigest()[:12]
    return job.folder / "finished" / f"{job.lineage(job.stage)}-{told}"


async def _attempt(world: World, attempt: Attempt[Task], sampling: Sampling) -> Trial:
    """One trial within the outermost deadline."""
    limit_s = world.config.rollout.remote_timeout_s
    deadline = attempt.time.limit(limit_s)
    try:
        async with deadline:
            return await world.run(attempt, sampling, capture=False)
    except TimeoutError:
        if not deadline.expired:
            raise
        return Trial(attempt.trial_id, attempt.task.ref, (), None, None, fault_of(TrialOverdue(limit_s)))


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
            turns=trial.facts.get("turns", len(trial.turns)),
            tokens=None if "turns" in trial.facts else trial_tokens(trial),
            seconds=sum(trial.timings_s.values()),
            stop=trial.stop,
            fault=cause,
        )
    folder = job.folder / "trials"
    shutil.rmtree(folder, ignore_errors=True)
    save_batch(folder, graded, [], [_reward(trial, job.config.reward) for trial in graded], ledger)
    job.store.put_tree(key, folder)


def _reward(trial: Trial, config: RewardConfig) -> Reward:
    """The reward of a trial. Tasks of a suite come without what curation measures for a credit by `fail_to_pass`: there
    every assertion counts, and the suite has no `mean_reward`."""
    measured = config.credit != "fail_to_pass" or trial.task.fail_to_pass
    return reward_of(trial, config if measured else config.model_copy(update={"credit": "count"}))


def _result(job: Job, suite: Suite, conditions: Conditions, score: SuiteScore, key: str) -> dict[str, Any]:
    return {
        "suite": suite.name,
        "harness": conditions.harness,
        "profile": conditions.profile,
        "series": conditions.series,
        "conditions": conditions.to_json(),
        "coverage": suite.coverage(),
        "caveats": suite.caveats(),
        "headline": {"name": suite.headline, "value": score.to_json()[suite.headline]},
        "label": job.inputs["label"],
        "checkpoint": job.inputs["checkpoint"],
        "n": score.trials,
        "pass_rate": score.resolved,
        "stderr": score.stderr,
        "stderr_estimator": score.stderr_estimator,
        "mean_reward": score.mean_reward,
        "verifier_reward": score.verifier_reward,
        "assertions_passed": score.assertions_passed,
        "turns_mean": score.turns_mean,
        "infra_rate": score.infra_rate,
        "metrics": score.metrics(conditions.series),
        "score": score.to_json(),
        "trials": key,
    }


def _percent(score: SuiteScore) -> str:
    return "nothing" if score.resolved is None else f"{score.resolved:.1%}"


if __name__ == "__main__":
    main(stage)
