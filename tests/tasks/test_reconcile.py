"""Jobs that go on though every run of theirs was cancelled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from components.artifacts import LocalStore
from components.cluster import RunningJob
from tasks import reconcile

CANCELLED, GOES_ON = str(UUID(int=1)), str(UUID(int=2))


class Prefect:
    """A server that knows of one cancelled run."""

    def __enter__(self) -> Prefect:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def read_flow_runs(self, *, flow_run_filter: Any) -> list[Any]:
        assert flow_run_filter.state.type.any_ == reconcile._CANCELLED
        return [SimpleNamespace(id=run) for run in flow_run_filter.id.any_ if str(run) == CANCELLED]


def test_a_job_whose_only_run_was_cancelled_when_it_had_crashed_is_stopped_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prefect's worker tells nobody of the cancellation of a run that it does not run any more: the job went on.
    store = LocalStore(tmp_path)
    jobs = {"alone": [CANCELLED], "shared": [CANCELLED, GOES_ON], "others": [GOES_ON], "elsewhere": []}
    for name, runs in jobs.items():
        for run in runs:
            store.put_json(f"campaigns/m-s1/jobs/m-s1-{name}/followers/{run}.json", {})
    running = [RunningJob(f"m-s1-{name}-r2", {"campaign": "m-s1"}) for name in jobs]
    stopped: list[str] = []
    cluster: Any = SimpleNamespace(running=lambda: running, stop=stopped.extend)
    monkeypatch.setattr(reconcile, "get_client", lambda sync_client: Prefect())
    site: Any = SimpleNamespace(store=lambda: store, cluster=lambda store, patience_s: cluster)
    assert reconcile.stop_cancelled(site) == stopped == ["m-s1-alone-r2"]
