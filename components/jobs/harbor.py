"""A suite run by a real Harbor: its Terminus-2 asks our gateway, which asks the samplers of the job."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import defaultdict
from pathlib import Path

from components.config import CampaignConfig
from components.evaluation import Suite, conditions_of, sampling_of
from components.evaluation.harbor import (
    AGENT,
    MODEL,
    VERSION,
    HarborTrial,
    harbor_environment,
    job_config,
    missing,
    remove_snares,
    run_job,
)
from components.gateway import Gateway, Routes, serving
from components.jobs.job import Job, log
from components.jobs.world import Drawing, open_world
from components.records import Trial
from components.rollout import trial_id

HARNESS = f"harbor {VERSION} {AGENT}"
SCRATCH = "harbor"
MOST_NAMED = 5


def home() -> Path:
    """Where Harbor's environment is made: Longshell's state, as far as a job is told of it."""
    return Path(os.environ.get("LONGSHELL_HOME") or Path.home() / ".cache" / "longshell")


def harness(config: CampaignConfig) -> str:
    """Who runs and who verifies the trials; it stands on every number."""
    return HARNESS if config.evaluation.harbor.verifier == "harbor" else f"{HARNESS}, verified in a fresh box"


def job_name(job: Job, config: CampaignConfig, suite: Suite) -> str:
    """Of Harbor's job of a suite. Harbor continues what has the name: it tells everything that trials are made under.

    Harbor itself sees no checkpoint and no sampling, which are behind the endpoint, and of tasks only their places.
    """
    weighed = [job.inputs["checkpoint"], conditions_of(config, suite.name, harness(config)).to_json(), suite.digest]
    digest = hashlib.sha256(json.dumps(weighed, sort_keys=True).encode()).hexdigest()[:12]
    return f"{suite.name}-{digest}"


def jobs(job: Job, config: CampaignConfig, suite: Suite) -> Path:
    """The folder of that job, which has no other in it; a repeated attempt finds it again."""
    return _scratch(job, config, suite) / "jobs"


def kept(job: Job, config: CampaignConfig, suite: Suite) -> Path:
    """That folder, as it can be put into a store: without what agents laid there for whoever reads it."""
    folder = jobs(job, config, suite)
    if snares := remove_snares(folder):
        named = ", ".join(f"{path[:200]!a}" for path in snares[:MOST_NAMED])
        log.warning("agents left %d links out of Harbor's folder, pipes or devices, removed: %s", len(snares), named)
    return folder


def _scratch(job: Job, config: CampaignConfig, suite: Suite) -> Path:
    return job.folder / SCRATCH / job_name(job, config, suite)


async def run_suite(
    job: Job, config: CampaignConfig, checkpoint: Path, suite: Suite, *, named: str, drawing: Drawing
) -> list[Trial]:
    """Runs a suite to its end, or continues it.

    Args:
        config: under its profile.
        named: what the ids of the trials are made of.
        drawing: of the samplers.

    Raises:
        ConfigError: there is no Python for Harbor.
        ServiceError: Harbor cannot be installed, or ended otherwise than with its job.
    """
    environment = await asyncio.to_thread(harbor_environment, config.evaluation.harbor, home(), log.info)
    folder = _scratch(job, config, suite)
    asked = job_config(
        config,
        [task.path for task in suite.tasks],
        name=job_name(job, config, suite),
        jobs=jobs(job, config, suite),
        state=folder / "state",
    )
    async with open_world(config, checkpoint, job.folder, drawing) as world:
        gateway = Gateway(
            world.fleet,
            world.template,
            model=MODEL,
            context_tokens=config.harness.max_context_tokens,
            capture=False,
            overrule=True,
            open_unknown=True,
            sampling=sampling_of(config.evaluation),
            max_answer_tokens=config.harness.max_turn_tokens,
        )
        async with serving(Routes(gateway)) as url:
            found = await run_job(environment, asked, url=url, log=folder / "harbor.log", tell=log.info)
    return trials_of(found, suite, config, named)


def trials_of(found: list[HarborTrial], suite: Suite, config: CampaignConfig, named: str) -> list[Trial]:
    """One trial for every attempt that was asked for, in the order of tasks and attempts."""
    by_task: dict[str, list[HarborTrial]] = defaultdict(list)
    for each in found:
        by_task[each.task].append(each)
    trials = []
    for task in suite.tasks:
        tried = by_task[task.path.name]
        for number in range(1, config.evaluation.conditions.attempts + 1):
            name = trial_id(named, number, task.ref.task_id, 1)
            if number > len(tried):
                trials.append(missing(name, task.ref))
                continue
            turns, verifier_s = config.harness.max_turns, config.rollout.verifier_timeout_s
            trials.append(tried[number - 1].trial(name, task.ref, max_turns=turns, verifier_timeout_s=verifier_s))
    return trials
