"""A red diagnosis holds a campaign until a person resumes it; each leg once. On a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.flow_runs import resume_flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from components.artifacts import LocalStore
from components.config import load
from tasks.stack import settings
from tests import services
from tests.flows import abandoned
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
HELD = """
from prefect import flow
from tasks.hold import hold
from tasks.results import Diagnosis

@flow(flow_run_name="held-by-a-test")
def held():
    for severity in ("ok", "red", "red"):
        hold(Diagnosis("report", (), severity + ": planted", severity, ()), 1)
        print("past", severity, flush=True)

held()
"""


def test_a_red_leg_holds_a_run_in_its_process_until_it_is_resumed_and_only_once() -> None:
    services.stack().up(["prefect"], pin=True)
    values = settings.environment(services.site())
    command = [sys.executable, "-c", HELD]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **values}, stdout=subprocess.PIPE, text=True)
    with SyncPrefectClient(api=values["PREFECT_API_URL"]) as client:
        asked = FlowRunFilter(name=FlowRunFilterName(any_=["held-by-a-test"]))
        eventually(lambda: [run.state_name for run in client.read_flow_runs(flow_run_filter=asked)] == ["Paused"])
        (run,) = client.read_flow_runs(flow_run_filter=asked)
        with temporary_settings({PREFECT_API_URL: values["PREFECT_API_URL"]}):
            resume_flow_run(run.id)
        output = process.communicate(timeout=120)[0]
        assert output.split() == ["past", "ok", "past", "red", "past", "red"], "the same leg does not hold it again"
        assert client.read_flow_run(run.id).state.is_completed()


@pytest.mark.nightly
def test_a_deployed_campaign_is_suspended_and_resumed_with_every_stage_run_once() -> None:
    values = services.ui()
    overrides = ["name=red", "rl.legs=2", "rl.leg_steps=2", "diagnosis.pause_on_red=true"]
    config = load(ROOT / "configs" / "miniature.yaml", overrides).model_dump(mode="json")
    with SyncPrefectClient(api=values["PREFECT_API_URL"]) as client:
        deployment = client.read_deployment_by_name("campaign/campaign")
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"config": config}).id
        abandoned.eventually(lambda: client.read_flow_run(run).state_name == "Suspended")
        with temporary_settings({PREFECT_API_URL: values["PREFECT_API_URL"]}):
            resume_flow_run(run)
        abandoned.eventually(lambda: client.read_flow_run(run).state.is_final())
        states = [state.name for state in client.read_flow_run_states(run)]
    assert states[-1] == "Completed"
    assert states.count("Suspended") == 1, states
    assert states.index("Suspended") < states.index("Resuming") < len(states) - 1 - states[::-1].index("Running")
    keys = [key for key in LocalStore(services.home() / "store").list("campaigns/red-s1/jobs") if "submitted-" in key]
    assert len(keys) == len({key.rpartition("/")[0] for key in keys}), "no job was submitted twice"
    assert sum("-rl-" in key for key in keys) == 2
