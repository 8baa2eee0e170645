"""What killed processes have left: flow runs that seem to run, and jobs of runs that nobody could be told to cancel.

Both are put in order when the next command starts.

A run of a deployment is its worker's and the automations' (`tasks/stack/provision.py`); one of a terminal is nobody's.
Only runs whose lock lies in this state directory are looked at: of other machines nothing is known here.
"""

from __future__ import annotations

import sys
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import State, StateType
from prefect.states import Crashed

from components.artifacts import ArtifactStore
from components.cluster import RunningJob
from components.errors import LongshellError
from tasks import alone
from tasks.site import Site

_CANCELLED = [StateType.CANCELLING, StateType.CANCELLED]
_UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def put_in_order(site: Site) -> None:
    """Both; whoever starts something does so all the same where Ray does not say what it runs."""
    crash_abandoned(site)
    try:
        stop_cancelled(site)
    except (LongshellError, OSError) as error:
        print(f"jobs of cancelled runs may still run: {error}", file=sys.stderr)


def stop_cancelled(site: Site) -> list[str]:
    """Stops the jobs all of whose flow runs were cancelled; gives their ids.

    Who is told of a cancellation is a run's process, and the worker that has it. A run that has crashed has neither, so
    that its job would go on to its end. Jobs of runs that this Prefect does not know are left.

    Raises:
        ServiceError: Ray does not answer, or a job may still run.
    """
    store = site.store()
    cluster = site.cluster(store, patience_s=0)
    followers = {job.id: _followers(store, job) for job in cluster.running()}
    known = sorted({run for runs in followers.values() for run in runs})
    if not known:
        return []
    wanted = FlowRunFilter(
        id=FlowRunFilterId(any_=[UUID(run) for run in known]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_CANCELLED)),
    )
    with get_client(sync_client=True) as client:
        cancelled = {str(run.id) for run in client.read_flow_runs(flow_run_filter=wanted)}
    over = [job for job, runs in followers.items() if runs and runs <= cancelled]
    cluster.stop(over)
    return over


def _followers(store: ArtifactStore, job: RunningJob) -> set[str]:
    """Flow runs that have submitted a job of this store, or attached to it."""
    place = f"campaigns/{job.metadata.get('campaign')}/jobs/{job.base}/followers"
    return {key.rpartition("/")[2].removesuffix(".json") for key in store.list(place)}


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
