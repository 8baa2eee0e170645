"""A flow run that is started again while its process lives, on a real server, worker and Ray head."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import AwaitingRetry

from components.config import load
from tasks.defaults import REPOSITORY
from tests import services
from tests.flows import abandoned
from tests.flows.test_faults import log_of

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(600)]


def test_a_run_that_is_started_again_while_its_process_lives_goes_on_in_that_process_alone() -> None:
    # The worker reports a killed process for the second time when the run was resumed already: it is resumed once more.
    hold = services.home() / "hold-twice-s1"
    hold.touch()
    config = load(REPOSITORY / "configs" / "miniature.yaml", ["name=twice"]).model_dump(mode="json")
    with SyncPrefectClient(api=services.ui()["PREFECT_API_URL"]) as client:
        deployment = client.read_deployment_by_name("curate/curate")
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"config": config}).id
        abandoned.eventually(lambda: any("submitted Ray job" in line for line in log_of(client, run)))
        client.set_flow_run_state(run, AwaitingRetry(), force=True)
        abandoned.eventually(lambda: any("runs this flow run already" in line for line in log_of(client, run)))
        hold.unlink()
        abandoned.eventually(lambda: client.read_flow_run(run).state.is_final())
        assert client.read_flow_run(run).state.is_completed(), log_of(client, run)
        lines = log_of(client, run)
    assert [line.split()[0] for line in lines if "Ray job" in line] == ["submitted"], "one process followed it"
