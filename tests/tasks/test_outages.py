"""What a flow task that follows a job does while servers are away, and when it is told to end."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.exceptions import TerminationSignal

from components.artifacts import LocalStore
from components.cluster import REPOSITORY, JobSpec, RunningJob
from components.config import load
from components.errors import ServiceError
from tasks import drive, mirror
from tasks.asks import Ask
from tasks.mirror import Mirror, Steps

SPEC = JobSpec("rl", "m-s1", 1, {}, {})


class Servers:
    """MLflow and Prefect, which answer unless they are away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away: str | None = None
        self.logged: list[int] = []
        self.shown: list[float] = []
        monkeypatch.setattr(mirror.tracking, "tracker", lambda: SimpleNamespace(log_step=self._log_step))
        monkeypatch.setattr(mirror, "create_progress_artifact", self._show)
        monkeypatch.setattr(mirror, "update_progress_artifact", lambda _, *args, **named: self._show(*args, **named))

    def _log_step(self, run: Any, step: int, metrics: Any, timestamp_ms: int) -> None:
        if self.away == "mlflow":
            raise ServiceError("MLflow is away")
        self.logged.append(step)

    def _show(self, percent: float, **_: Any) -> str:
        if self.away == "prefect":
            raise httpx.ConnectError("Prefect is away")
        self.shown.append(percent)
        return "artifact"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    return Servers(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def following(store: LocalStore) -> Mirror:
    return Mirror(store, Steps("c/rl/steps", first=0, end=4, title="m-s1 rl 1"), None)


def commit(store: LocalStore, step: int) -> None:
    record = {"step": step, "total": 4, "timestamp_ms": 1_000 * step, "metrics": {}}
    store.put_json(f"c/rl/steps/{step:06d}/record.json", record)


@pytest.mark.parametrize("away", ["prefect", "mlflow"])
def test_a_job_goes_on_while_a_server_is_away_and_everything_is_shown_once_when_it_is_back(
    store: LocalStore, servers: Servers, away: str
) -> None:
    told: list[str] = []
    watching = following(store)

    def tick(step: int) -> None:
        commit(store, step)
        watching.tick(lambda _, text: told.append(text))

    tick(0)
    servers.away = away
    tick(1)
    tick(2)
    assert [text.partition(":")[0] for text in told] == ["steps are not shown for the moment"], "once an outage"
    servers.away = None
    watching.tick(lambda _, text: told.append(text))
    assert (servers.logged, servers.shown) == ([0, 1, 2], [25.0, 75.0])
    servers.away = away
    tick(3)
    assert len(told) == 2
    with pytest.raises((ServiceError, httpx.ConnectError)):
        watching.poll()


def test_steps_that_could_not_be_shown_when_a_job_has_ended_are_an_error_that_is_tried_again(
    store: LocalStore, servers: Servers
) -> None:
    servers.away = "mlflow"

    def follow(spec: JobSpec, submission_id: str, emit: Any, tick: Any) -> dict[str, Any]:
        commit(store, 0)
        tick()
        return {}

    cluster: Any = SimpleNamespace(follow=follow)
    with pytest.raises(ServiceError):
        drive._follow(cluster, SPEC, "m-s1-rl-1", lambda *_: None, following(store), None)
    servers.away = None
    assert drive._follow(cluster, SPEC, "m-s1-rl-1", lambda *_: None, following(store), None) == {}
    assert servers.logged == [0]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_cancelled_run_stops_its_jobs_before_it_ends_and_one_whose_worker_ends_leaves_them(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    # Prefect's worker calls the hook of a cancellation when the run's process has ended: 44 s after the click.
    stopped: list[str] = []
    monkeypatch.setattr(drive, "_is_cancelled", lambda: cancelled)
    monkeypatch.setattr(drive, "_flow_run_id", lambda: "f")
    monkeypatch.setattr(drive, "stop_followed", stopped.append)

    def follow(*_: object) -> None:
        raise TerminationSignal(signal.SIGTERM)

    cluster: Any = SimpleNamespace(follow=follow)
    with pytest.raises(TerminationSignal):
        drive._follow(cluster, SPEC, "m-s1-rl-1", lambda *_: None, following(store), None)
    assert stopped == ["f"] * cancelled


def test_a_run_that_is_killed_when_it_has_submitted_is_known_to_follow_its_job(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[RunningJob] = []
    stopped: list[str] = []

    def submit(spec: JobSpec, metadata: dict[str, str]) -> None:
        running.append(RunningJob(spec.base, metadata))
        raise SystemExit("stands for a kill")

    cluster: Any = SimpleNamespace(
        result=lambda spec: None, submit=submit, running=lambda: running, stop=lambda jobs: stopped.extend(jobs)
    )
    site: Any = SimpleNamespace(store=lambda: store, cluster=lambda store, patience_s=0: cluster)
    monkeypatch.setattr(drive.Site, "current", lambda: site)
    monkeypatch.setattr(drive, "get_run_logger", lambda: None)
    monkeypatch.setattr(drive, "_flow_run_id", lambda: "f")
    monkeypatch.setattr(drive, "_metadata", lambda name, stage: {"campaign": name})
    config = load(REPOSITORY / "configs" / "miniature.yaml")
    with pytest.raises(SystemExit):
        drive.drive(config, Ask("base", 0, {}))
    assert drive.stop_followed("another") == []
    assert drive.stop_followed("f") == stopped == [running[0].id]


def test_a_stage_whose_result_is_reused_still_says_which_job_made_it(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever continued a campaign took the way from MLflow to Ray out of every stage that was done.
    tags: dict[str, str] = {}
    found: dict[str, Any] = {}

    def stage(parent: object, name: str, told: dict[str, str]) -> None:
        tags.update(told)

    cluster: Any = SimpleNamespace(
        result=lambda spec: found.get("result"), submit=lambda spec, _: SimpleNamespace(id=spec.base, attached=False)
    )
    site: Any = SimpleNamespace(store=lambda: store, cluster=lambda store: cluster)
    monkeypatch.setattr(drive.Site, "current", lambda: site)
    monkeypatch.setattr(drive, "get_run_logger", lambda: logging.getLogger())
    monkeypatch.setattr(drive, "_flow_run_id", lambda: "f")
    monkeypatch.setattr(drive, "_metadata", lambda name, stage: {"campaign": name})
    monkeypatch.setattr(drive, "_follow", lambda *_: {})
    monkeypatch.setattr(drive.tracking, "campaign_run", lambda *_: None)
    monkeypatch.setattr(drive.tracking, "tracker", lambda: SimpleNamespace(stage=stage))
    config = load(REPOSITORY / "configs" / "miniature.yaml")
    drive.drive(config, Ask("base", 0, {}))
    job = tags["ray.submission_id"]
    assert job.startswith("miniature-s1-base-0-")
    found["result"] = {}
    drive.drive(config, Ask("base", 0, {}))
    assert tags["ray.submission_id"] == job


def test_a_run_that_is_told_to_end_while_prefect_is_away_ends_and_leaves_its_jobs(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def asked() -> bool:
        raise httpx.ConnectError("Prefect is away")

    def follow(*_: object) -> None:
        raise TerminationSignal(signal.SIGTERM)

    monkeypatch.setattr(drive, "_is_cancelled", asked)
    cluster: Any = SimpleNamespace(follow=follow)
    with pytest.raises(TerminationSignal):
        drive._follow(cluster, SPEC, "m-s1-rl-1", lambda _, text: told.append(text), following(store), None)
    assert [text.partition(";")[0] for text in told] == ["it is not known whether the run was cancelled"]
