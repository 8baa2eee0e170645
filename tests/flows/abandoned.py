"""A flow run whose worker is killed, with all its processes, in the middle of a Ray job.

Two automations bring it back, after as much silence as tells a dead run from a busy machine: about 100 s. So it is
begun with the session, and `test_faults.py` looks at it when the session comes there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient

from components.config import load
from tasks.defaults import REPOSITORY
from tests import services, waiting

CAMPAIGN = "abandoned-s1"
HEARTBEAT = "prefect.flow-run.heartbeat"


def flow_run() -> UUID:
    """The run of a curation that has lost its worker; there is a new worker, and the Ray job is held."""
    return begin().result()


@functools.cache
def begin() -> Future[UUID]:
    """Starts the stack and does it, beside whatever the caller does next."""
    services.begin_ui()
    return services.beside.submit(_abandon)


def _abandon() -> UUID:
    services.home().joinpath(f"hold-{CAMPAIGN}").touch()
    config = load(REPOSITORY / "configs" / "miniature.yaml", ["name=abandoned"]).model_dump(mode="json")
    with SyncPrefectClient(api=services.ui()["PREFECT_API_URL"]) as client:
        deployment = client.read_deployment_by_name("curate/curate")
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"config": config}).id
        trace = services.home() / "trace"
        eventually(lambda: trace.exists() and "begin curate-0" in trace.read_text())
        eventually(lambda: heartbeats(client, run) > 0)
    worker = psutil.Process(services.worker())
    processes = [worker, *worker.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
    services.worker()
    return run


def release() -> None:
    """Lets the Ray job go on."""
    services.home().joinpath(f"hold-{CAMPAIGN}").unlink()


def heartbeats(client: SyncPrefectClient, run: UUID) -> int:
    """How many heartbeats of a flow run the server has taken note of."""
    asked = {"event": {"name": [HEARTBEAT]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    return int(client.request("POST", "/events/filter", json={"filter": asked}).json()["total"])


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for a condition; who waits in vain reads what the worker said."""
    waiting.eventually(condition, 400.0, lambda: services.stack().log("worker").read_text()[-3000:])
