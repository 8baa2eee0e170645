"""Holds a campaign whose diagnosis is red until a person has looked at it."""

from __future__ import annotations

from uuid import UUID

import prefect.runtime
from prefect import get_client, get_run_logger
from prefect.flow_runs import pause_flow_run, suspend_flow_run

from tasks.results import Diagnosis

PATIENCE_S = 7 * 24 * 3600
POLL_S = 2


def hold(diagnosis: Diagnosis, leg: int) -> None:
    """Called in a flow run: goes on at once unless `diagnosis` is red.

    A run of a deployment is suspended: its process ends, and "Resume" schedules it again, which finds every stage done.
    Any other run waits in its process. A leg holds its run once, however often the run is started again.
    """
    if diagnosis.severity != "red":
        return
    run, key = str(prefect.runtime.flow_run.id), f"red-after-leg-{leg}"
    if _held_before(run, key):
        return
    get_run_logger().warning(
        "leg %d: %s. The campaign is held. Go on: Resume in the Prefect UI, or `prefect flow-run resume %s`",
        *(leg, diagnosis.verdict, run),
    )
    if prefect.runtime.deployment.id is None:
        pause_flow_run(timeout=PATIENCE_S, poll_interval=POLL_S, key=key)
    else:
        suspend_flow_run(timeout=PATIENCE_S, key=key)


def _held_before(run: str, key: str) -> bool:
    """Whether this hold of the run was resumed already: the server keeps the keys of a run's pauses."""
    with get_client(sync_client=True) as client:
        policy = client.read_flow_run(UUID(run)).empirical_policy
    return key in (policy.pause_keys or ())
