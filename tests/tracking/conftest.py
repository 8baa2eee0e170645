"""One MLflow database for the session: making one takes two seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.tracking import Run, Tracker


@pytest.fixture(scope="session")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    folder: Path = tmp_path_factory.mktemp("mlflow")
    return Tracker(f"sqlite:///{folder}/mlflow.db", folder / "artifacts")


@pytest.fixture
def parent(tracker: Tracker, request: pytest.FixtureRequest) -> Run:
    return tracker.campaign(request.node.name[:40], {"seed": 1, "rl": {"legs": 2}}, {})
