"""Runs of terminals whose process was killed. On a real server."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Running

from components.cluster import REPOSITORY
from tasks.reconcile import crash_abandoned
from tasks.stack import settings
from tests import services

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
HOLDER = """
import sys, time
from pathlib import Path
from tasks import alone
for run in sys.argv[2:]:
    alone.take(run, Path(sys.argv[1]))
print("held", flush=True)
time.sleep(300)
"""


@flow(name="of-a-terminal")
def of_a_terminal() -> None:
    """Never run: the states are what is looked at."""


def holding(*runs: UUID) -> subprocess.Popen[str]:
    """A process that has them."""
    command = [sys.executable, "-c", HOLDER, str(services.home()), *map(str, runs)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_terminals_run_whose_process_was_killed_is_told_as_crashed_and_no_other() -> None:
    services.stack().up(["prefect"], pin=True)
    api = settings.environment(services.site())["PREFECT_API_URL"]
    with SyncPrefectClient(api=api) as client, temporary_settings({PREFECT_API_URL: api}):
        names = ("killed", "alive", "done", "elsewhere")
        runs = {name: client.create_flow_run(of_a_terminal, name=name, state=Running()).id for name in names}
        with holding(runs["alive"]) as alive:
            with holding(runs["killed"], runs["done"]) as killed:
                assert "killed" not in crash_abandoned(services.site()), "its process runs"
                killed.kill()
            client.set_flow_run_state(runs["done"], Completed())
            assert crash_abandoned(services.site()) == ["killed"]
            assert crash_abandoned(services.site()) == [], "once"
            states = {name: client.read_flow_run(runs[name]).state_name for name in names}
            alive.kill()
    assert states == {"killed": "Crashed", "alive": "Running", "done": "Completed", "elsewhere": "Running"}
