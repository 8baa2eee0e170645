"""How every flow task drives its Ray job: reuse the result, or attach, or submit; follow; fail by kind.

Flow tasks may be run any number of times, by Prefect's retries, by a rescheduled flow run, or by a new one: the result
marker in the store says what is done, the submission id finds what is running.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import prefect.runtime
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.exceptions import TerminationSignal
from prefect.logging.loggers import task_run_logger

from components.artifacts import ArtifactStore
from components.cluster import Cluster, JobSpec, RunningJob
from components.config import CampaignConfig
from components.errors import LongshellError, failure_of
from components.naming import run_key
from tasks import tracking
from tasks.asks import Ask
from tasks.campaign import campaign_name
from tasks.mirror import Mirror, Steps
from tasks.site import Site
from tasks.space import explaining
from tasks.terminal import brief


def is_retriable(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again can help: by the kind of the failure, and not while a disk is full."""
    try:
        with explaining(Site.current()):
            state.result()
    except Exception as error:  # The boundary: an error becomes a decision.
        again = failure_of(error).retriable
        if again:
            task_run_logger(task_run, task).warning("%s. It is tried again.", brief(error))
        return again
    return False


STAGE: Mapping[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": [2, 10, 30],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": is_retriable,
    "persist_result": False,
}
"""Options of every flow task that drives a job."""


@dataclass(frozen=True)
class Driven:
    """A finished job: its result and the MLflow run of its stage."""

    result: Mapping[str, Any]
    run: Any
    parent: Any
    store: ArtifactStore


def drive(config: CampaignConfig, ask: Ask) -> Driven:
    """Runs one job to its result. Called within a flow task."""
    site, log, name = Site.current(), get_run_logger(), campaign_name(config)
    store = site.store()
    stage, index, spec = ask.stage, ask.index, ask.spec(config)
    first = int(ask.inputs.get("first_step", 0))
    end = first + ask.steps if ask.steps is not None else None
    title = f"{name} {stage} {index}" if index else f"{name} {stage}"
    watched = Steps(f"campaigns/{name}/{stage}/steps", first, end, title)

    cluster = site.cluster(store)
    result = cluster.result(spec)
    submission = None
    if result is None:
        # First: a run that is killed after it has submitted, and then cancelled, must be known to follow the job.
        store.put_json(spec.key(f"followers/{_flow_run_id()}.json"), {})
        submission = cluster.submit(spec, _metadata(name, stage))
        log.info("%s Ray job %s", "attached to" if submission.attached else "submitted", submission.id)

    tags = {"prefect.flow_run_id": _flow_run_id(), "longshell.campaign": name}
    parent = tracking.campaign_run(name, config, tags)
    asked = {} if submission is None else {"ray.submission_id": submission.id}  # A reused result keeps its job's.
    run = tracking.tracker().stage(parent, stage, {**tags, **asked})
    mirror = Mirror(store, watched, run)
    if submission is None:
        log.info("%s is done already; its result is reused", spec.base)
        mirror.poll()
    else:
        result = _follow(cluster, spec, submission.id, log.log, mirror, run)
    assert result is not None
    _tell_refused(result.get("refused_states", ()), run, index, log.warning)
    return Driven(result, run, parent, store)


def _tell_refused(states: Sequence[Mapping[str, Any]], run: Any, index: int, warn: Callable[..., None]) -> None:
    """Shows what the job could not continue from, in the flow task's log and on the run of its stage."""
    for state in states:
        told = state["step"], state["cause"], state["continued_at"]
        warn("the state after step %d was refused (%s): the job continued at step %d", *told)
    if states:
        tracking.tracker().log_tags(run, {f"longshell.refused_states.{index}": json.dumps(list(states))})


def stop_jobs(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """A flow's `on_cancellation` hook: stops the Ray jobs that the flow run follows.

    It runs in the worker's process, after the flow's has ended; a flow task that follows a job has stopped them before.
    A crash does not call it: jobs of a crashed run go on, and its successor attaches to them.
    """
    stop_followed(str(flow_run.id))


def stop_followed(flow_run_id: str) -> list[str]:
    """Stops the unfinished jobs that a flow run submitted or attached to; gives their submission ids.

    Raises:
        ServiceError: names each that may still run.
    """
    site = Site.current()
    store = site.store()
    cluster = site.cluster(store, patience_s=0)  # Who cancels does not wait.

    def followed(job: RunningJob) -> bool:
        place = f"campaigns/{job.metadata.get('campaign')}/jobs/{job.base}/followers/{flow_run_id}.json"
        return store.exists(place)

    jobs = [job.id for job in cluster.running() if followed(job)]
    cluster.stop(jobs)
    return jobs


def _follow(
    cluster: Cluster, spec: JobSpec, submission_id: str, log: Callable[[int, str], None], mirror: Mirror, run: Any
) -> dict[str, Any]:
    try:
        result = cluster.follow(spec, submission_id, lambda line: log(line.level, line.text), lambda: mirror.tick(log))
    except LongshellError:
        try:
            mirror.poll()  # What was committed before the failure stays visible.
            tracking.tracker().end(run, failed=True)
        except Exception as error:  # The boundary: what is shown of a failure must not take its place.
            log(logging.WARNING, f"MLflow does not show that {submission_id} failed: {error}")
        raise
    except TerminationSignal:
        # The worker calls `stop_jobs` when this process has ended and the flow is imported once more: up to a minute.
        doing = "it is not known whether the run was cancelled"
        try:
            if _is_cancelled():
                doing = "the run was cancelled, and the worker has to stop its jobs"
                stop_followed(_flow_run_id())
        except Exception as error:  # The boundary: that this process shall end must not be lost with a server.
            log(logging.WARNING, f"{doing}; {submission_id} goes on for now: {error}")
        raise
    mirror.poll()  # Now it must be shown.
    return result


def _is_cancelled() -> bool:
    """Whether the run was told to end for good. One whose worker ends gets the same signal, and its jobs go on."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(prefect.runtime.flow_run.id).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def _flow_run_id() -> str:
    return str(prefect.runtime.flow_run.id)


def _metadata(name: str, stage: str) -> dict[str, str]:
    """What Ray keeps of a job: its flow run in Prefect, and the tag of its run in MLflow (`longshell.key`)."""
    return {
        "campaign": name,
        "stage": stage,
        "mlflow_key": run_key(name, stage),
        "prefect_flow_run_id": _flow_run_id(),
        "prefect_task_run_id": str(prefect.runtime.task_run.id),
    }
