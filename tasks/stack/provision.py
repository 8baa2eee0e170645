"""What the Prefect server is told: the work pool, the deployments of `prefect.yaml`, the automations. Idempotent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.exceptions import ObjectAlreadyExists

from components.cluster import REPOSITORY
from components.errors import ServiceError
from tasks.stack.settings import HEARTBEAT_S, WORK_POOL

RESUMABLE = "resumable"
"""Flow runs with this tag are brought back after a crash."""
MAX_RUNS = 5
"""A flow run that crashed this often stays crashed, for a person to look at."""
DEPLOY_S = 300
"""Until `prefect deploy`, which takes some ten seconds, counts as hung."""
_SETTLED_S = 20
_TAKEN_UP = ("AwaitingRetry", "Scheduled", "Pending", "Submitting", "Running", "Cancelled", "Completed")
_FLOW_RUN = {"prefect.resource.id": "prefect.flow-run.*"}
_IS_RESUMABLE = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{RESUMABLE}"}
_SIGNS_OF_LIFE = ("heartbeat", "Completed", "Failed", "Cancelled", "Crashed", "Suspended", "Paused", "AwaitingRetry")


def automations() -> list[AutomationCore]:
    """The automations that bring a crashed campaign back without a person."""
    attempts = [str(count) for count in range(1, MAX_RUNS)]
    # A crash is reported twice, by the runner and some ten seconds later by the worker. Were the first report acted on,
    # the second would crash the run that was just resumed: act when nothing has happened for a while. A report that is
    # later still brings a second process about (`tasks/alone.py`).
    resume = EventTrigger(
        posture=Posture.Proactive,
        match={**_FLOW_RUN, "prefect.run-count": attempts},
        match_related=_IS_RESUMABLE,
        after={"prefect.flow-run.Crashed"},
        expect={f"prefect.flow-run.{name}" for name in _TAKEN_UP},
        for_each={"prefect.resource.id"},
        threshold=1,
        within=_SETTLED_S,
    )
    zombie = EventTrigger(
        posture=Posture.Proactive,
        match=_FLOW_RUN,
        match_related=_IS_RESUMABLE,
        after={"prefect.flow-run.heartbeat"},
        expect={f"prefect.flow-run.{name}" for name in _SIGNS_OF_LIFE},
        for_each={"prefect.resource.id"},
        threshold=1,
        within=2 * HEARTBEAT_S + 10,
    )
    return [
        AutomationCore(
            name="resume-crashed",
            description=f"A crashed resumable flow run is scheduled again, until it has been started {MAX_RUNS} times",
            trigger=resume,
            actions=[
                ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message="resumed after a crash")
            ],
        ),
        AutomationCore(
            name="zombie-detector",
            description="A resumable flow run whose heartbeat stopped is marked as crashed",
            trigger=zombie,
            actions=[ChangeFlowRunState(state=StateType.CRASHED, message="two heartbeats are missing")],
        ),
    ]


def provision(environment: Mapping[str, str]) -> None:
    """Installs everything on the server that the current settings point to.

    Raises:
        ServiceError: `prefect deploy` refused, or did not end.
    """
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"))
    for automation in automations():
        _install(automation)
    command = [str(Path(sys.executable).parent / "prefect"), "--no-prompt", "deploy", "--all"]
    variables = {**os.environ, **environment}
    try:
        done = subprocess.run(command, cwd=REPOSITORY, env=variables, text=True, capture_output=True, timeout=DEPLOY_S)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"prefect deploy --all did not end within {DEPLOY_S} s: repeat it") from error
    if done.returncode:
        raise ServiceError(f"prefect deploy --all failed:\n{done.stdout}\n{done.stderr}")


def _install(wanted: AutomationCore) -> None:
    """Leaves an automation that is as wanted alone: a new one would not know of the heartbeats the old one has seen."""
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(wanted.name)
        if len(found) == 1 and _content(found[0]) == _content(wanted):
            return
        for before in found:
            client.delete_automation(before.id)
        client.create_automation(wanted)


def _content(automation: AutomationCore) -> dict[str, Any]:
    """What an automation does, without what the server adds. Sets are compared as sets."""
    return {name: getattr(automation, name) for name in ("description", "enabled", "trigger", "actions")}
