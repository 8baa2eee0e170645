"""What MLflow is told, in a real PostgreSQL, as on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from components.naming import EXPERIMENT
from components.tracking import Tracker
from tests.postgres import Server, postgres

__all__ = ["postgres"]


@pytest.fixture
def address(postgres: Server, tracker: Tracker) -> Iterator[str]:
    yield postgres.create("mlflow").replace("postgresql", "postgresql+psycopg2")
    mlflow.set_tracking_uri(tracker.uri)  # A tracker is the process's.
    mlflow.set_experiment(EXPERIMENT)


def test_a_step_that_two_processes_log_is_in_a_real_postgresql_once(
    postgres: Server, address: str, tmp_path: Path
) -> None:
    for value, fresh in ((0.5, True), (0.7, False)):
        opened = Tracker(address, tmp_path / "files")
        run = opened.stage(opened.campaign("p-s1", {"seed": 1}, {}), "rl", {})
        assert opened.log_step(run, 7, {"rollout/reward_mean": value}, 1_700_000_000_000) == fresh
    metrics = "SELECT value, step, timestamp FROM metrics WHERE key = 'rollout/reward_mean'"
    assert postgres.ask("mlflow", metrics) == [(0.5, 7, 1_700_000_000_000)]
