"""Runs a job of Harbor's: its own process and Python, our endpoint, our boxes.

    config = job_config(...)                       what is run: everything but the endpoint
    trials = await run_job(environment, config, url=..., log=..., tell=...)

Invariants: the process ends with ours, however that ends; a job that was broken off is continued by its name, and no
finished trial is run again. For that Harbor wants a configuration that equals the one before, so the endpoint, which
may change between two runs, is not in it: an environment variable names it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.config import CampaignConfig, SandboxConfig
from components.errors import ServiceError
from components.evaluation.harbor.results import HarborTrial, read_job
from components.outcomes import HARBOR_LEFT, HARBOR_STOPS, HARBOR_VERIFIER

AGENT = "terminus-2"
MODEL = "policy"
"""What Harbor calls the policy; its provider `hosted_vllm` takes no name with a slash."""
ENVIRONMENT = "components.sandbox.harbor:LongshellEnvironment"
VERIFIER = "components.sandbox.harbor:LongshellVerifier"
ROOT = Path(__file__).parents[3]
"""Our sources, which Harbor's Python imports the environment from."""
BOX_KEYS = ("backend", "docker", "allow_unisolated", "pids", "disk_mb", "images", "min_free_mb", "starts_per_s")
"""Of our sandboxes, what a node decides. Processors, memory and network are what a task asks Harbor for."""
MAX_RETRIES = 1
"""As our own runner: a fault is tried once more."""
NOT_RETRIED = (*HARBOR_STOPS, HARBOR_LEFT, *HARBOR_VERIFIER)
"""Harbor knows errors by their type alone. One is that of a policy that left its terminal and of some of Harbor's own
faults, a Docker command's among them: those remain faults, untried, for a second try must not be had by `exit`."""
BROKEN_OFF = "CancelledError"
"""Of a trial that was under way when its job was told to end. Harbor writes it a result, and takes it for finished."""
GRACE_S = 20.0
"""For Harbor to stop its boxes in order."""
LOOK_S = 10.0
LAST_LINES = 20


def job_config(
    config: CampaignConfig, tasks: Sequence[Path], *, name: str, jobs: Path, state: Path, agent: str = AGENT
) -> dict[str, Any]:
    """What Harbor is asked for, as the JSON of its `JobConfig`.

    Args:
        config: under the profile of its evaluation.
        tasks: their directories.
        name: of the job; the same name continues it.
        jobs: folder of jobs.
        state: folder that our boxes keep things in.
        agent: another one of Harbor's; `oracle` and `nop` ask no model.
    """
    harbor, walls = config.evaluation.harbor, config.evaluation.conditions.walls
    uniform = walls is not None and walls.uniform
    limit = "override_timeout_sec" if uniform else "max_timeout_sec"
    environment = (
        {"type": "docker"}
        if harbor.environment == "docker"
        else {"import_path": ENVIRONMENT, "kwargs": {**box_arguments(config.sandbox), "state": str(state)}}
    )
    return {
        "job_name": name,
        "jobs_dir": str(jobs),
        "n_attempts": config.evaluation.conditions.attempts,
        "n_concurrent_trials": harbor.concurrency,
        "quiet": True,
        "retry": {"max_retries": MAX_RETRIES, "exclude_exceptions": sorted(NOT_RETRIED)},
        "agents": [
            {
                "name": agent,
                "model_name": f"hosted_vllm/{MODEL}",
                limit: config.rollout.agent_timeout_s,
                "kwargs": terminus_arguments(config) if agent == AGENT else {},
            }
        ],
        "verifier": {
            limit: config.rollout.verifier_timeout_s,
            **({"import_path": VERIFIER} if harbor.verifier == "longshell" else {}),
        },
        "environment": environment,
        "tasks": [{"path": str(task)} for task in tasks],
    }


def terminus_arguments(config: CampaignConfig) -> dict[str, Any]:
    """The limits of our loop as Terminus-2 takes them. How it samples, and how long an answer is, the gateway says."""
    harness = config.harness
    compaction = harness.compaction
    return {
        "parser_name": "json",
        "max_turns": harness.max_turns,
        "suppress_max_turns_warning": True,
        "record_terminal_session": False,
        "enable_summarize": compaction is not None,
        "proactive_summarization_threshold": 0 if compaction is None else compaction.proactive_threshold_tokens,
        "session_id_headers": ["X-Session-ID"],
        "model_info": {
            "max_input_tokens": harness.max_context_tokens,
            "max_output_tokens": harness.max_turn_tokens,
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
        },
    }


def box_arguments(sandbox: SandboxConfig) -> dict[str, Any]:
    """Keys of our sandboxes for `LongshellEnvironment`; a campaign without a network gives its tasks none here, too."""
    whole = sandbox.model_dump(mode="json")
    given = {key: whole[key] for key in BOX_KEYS}
    return given | {"network": "none"} if sandbox.network == "none" else given


async def run_job(
    environment: Path, config: Mapping[str, Any], *, url: str | None, log: Path, tell: Callable[[str], None]
) -> list[HarborTrial]:
    """Runs a job to its end, or continues it; gives its finished trials.

    Args:
        environment: the virtual environment that holds Harbor.
        config: of `job_config`.
        url: of the endpoint; None where no agent asks a model.
        log: file that Harbor's own words are added to.
        tell: is given a line now and then.

    Raises:
        ServiceError: Harbor ended otherwise than with its job; the last lines of its log say how.
    """
    jobs, name = Path(config["jobs_dir"]), str(config["job_name"])
    jobs.mkdir(parents=True, exist_ok=True)
    asked = jobs / f"{name}.json"
    asked.write_text(json.dumps(config, indent=1))
    forget_broken_off(jobs / name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "components.sampler.guardian"),
            *("--parent", str(os.getpid()), "--grace-s", str(GRACE_S)),
            *(str(environment / "bin" / "harbor"), "run", "-c", str(asked), "--yes"),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=_variables(url),
        )
    try:
        await _watched(process, jobs / name, len(config["tasks"]) * int(config["n_attempts"]), tell)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise ServiceError(f"Harbor ended with {process.returncode}; its last lines:\n" + "\n".join(last))
    return read_job(jobs / name)


def forget_broken_off(folder: Path) -> None:
    """Removes the trials of a job that did not end but were ended with it: they run again when it is continued."""
    for result in folder.glob("*/result.json"):
        try:
            document = json.loads(result.read_bytes())
        except ValueError:  # `read_job` tells what is damaged.
            continue
        error = document.get("exception_info") if isinstance(document, dict) else None
        if isinstance(error, dict) and error.get("exception_type") == BROKEN_OFF:
            shutil.rmtree(result.parent)


async def _watched(process: asyncio.subprocess.Process, folder: Path, asked: int, tell: Callable[[str], None]) -> None:
    told = 0
    while process.returncode is None:
        try:
            await asyncio.wait_for(process.wait(), LOOK_S)
        except TimeoutError:
            ended = len(list(folder.glob("*/result.json")))
            if ended != told:
                tell(f"harbor: {ended} of {asked} trials have ended")
                told = ended


def _variables(url: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    given = {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HARBOR_TELEMETRY": "0",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    if url is not None:
        given |= {"HOSTED_VLLM_API_BASE": f"{url}/v1", "HOSTED_VLLM_API_KEY": "none"}
    return kept | given
