"""`kill -9` of the Prefect worker, with the flow runs it had started: they come back without a person, and attach."""

from __future__ import annotations

from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.sorting import LogSort

from components.artifacts import LocalStore
from tests import services
from tests.flows import abandoned

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def log_of(client: SyncPrefectClient, run: UUID) -> list[str]:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    return [line.message for line in client.read_logs(wanted, sort=LogSort.TIMESTAMP_ASC)]


def test_a_run_whose_worker_was_killed_is_started_again_by_the_next_worker_and_attaches_to_the_running_job() -> None:
    # prefect #16746/#18257: a killed worker left its run Running for ever; #21794/#18653: the automation against that
    # crashed runs that had finished. #17415/#9895, leaked concurrency slots: nothing of ours waits for one.
    run = abandoned.flow_run()
    with SyncPrefectClient(api=services.ui()["PREFECT_API_URL"]) as client:
        abandoned.eventually(lambda: any(line.startswith("attached to Ray job") for line in log_of(client, run)))
        assert client.read_flow_run(run).state.is_running()
        abandoned.release()
        abandoned.eventually(lambda: client.read_flow_run(run).state.is_final())
        ended = client.read_flow_run(run)
        lines = log_of(client, run)
        states = [state.name for state in client.read_flow_run_states(run)]
    assert ended.state.is_completed(), lines
    assert (states[-1], "Crashed" in states, states.count("Running"), ended.run_count) == ("Completed", True, 2, 2)
    followed = [line.split() for line in lines if "Ray job" in line]
    assert [words[0] for words in followed] == ["submitted", "attached"]
    assert followed[0][-1] == followed[1][-1], "the same submission"
    keys = LocalStore(services.home() / "store").list(f"campaigns/{abandoned.CAMPAIGN}/jobs")
    assert [key.rpartition("/")[2] for key in keys if "/submitted-" in key] == ["submitted-0.json"]
