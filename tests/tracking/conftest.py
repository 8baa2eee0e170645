"""One MLflow database for the session."""

from __future__ import annotations

import pytest

from components.tracking import Run, Tracker
from tests import services


@pytest.fixture(scope="session")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    return Tracker(services.database(tmp_path_factory.mktemp("mlflow") / "mlflow.db"))


@pytest.fixture
def parent(tracker: Tracker, request: pytest.FixtureRequest) -> Run:
    return tracker.campaign(request.node.name[:40], {"seed": 1, "rl": {"legs": 2}}, {})
