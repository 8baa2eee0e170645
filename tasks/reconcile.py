"""Flow runs that seem to run after their process was killed: told to Prefect when the next command starts.

A run of a deployment is its worker's and the automations' (`tasks/stack/provision.py`); one of a terminal is nobody's.
Only runs whose lock lies in this state directory are looked at: of other machines nothing is known here.
"""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import State, StateType
from prefect.states import Crashed

from tasks import alone
from tasks.site import Site

_UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def crash_abandoned(site: Site) -> list[str]:
    """Marks terminals' runs as crashed whose process has ended without a word; gives their names."""
    left = [UUID(run) for run in alone.abandoned(site.home)]
    if not left:
        return []
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNFINISHED))
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=left), state=state)
    with get_client(sync_client=True) as client:
        runs = [run for run in client.read_flow_runs(flow_run_filter=wanted) if run.deployment_id is None]
        for run in runs:
            told: State[None] = Crashed(message="its process was killed; the same command continues its campaign")
            client.set_flow_run_state(run.id, told, force=True)
    return [run.name for run in runs]
