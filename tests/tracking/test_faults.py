"""Faults that the logging of other projects had (the public report is named)."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mlflow
import pytest

from components.errors import ServiceError
from components.naming import EXPERIMENT
from components.tracking import Registry, Run, Tracker

ROOT = Path(__file__).parents[2]


def test_a_run_that_crashed_and_resumed_earlier_has_one_point_a_step(tracker: Tracker, parent: Run) -> None:
    # SkyRL #1929/#1784, ray #46897, mlflow #7152: a crash at 154 and a resume at 100 logged 100 to 154 twice.
    for step in range(8):
        tracker.log_step(parent, step, {"loss": float(step)}, 1_000 * step)
    resumed = Tracker(tracker.uri)
    run = resumed.campaign(parent.key, {"seed": 1, "rl": {"legs": 2}}, {})
    assert run == parent
    for step in range(5, 10):
        resumed.log_step(run, step, {"loss": 100.0 + step}, 9_000 + step)
    history = resumed.client.get_metric_history(run.run_id, "loss")
    assert sorted(item.step for item in history) == list(range(10))
    assert [item.value for item in sorted(history, key=lambda item: item.step)][5:] == [5, 6, 7, 108, 109]


def test_a_resumed_run_whose_parameters_are_said_again_is_no_error(tracker: Tracker, parent: Run) -> None:
    # mlflow #4248/#7046: parameters are immutable, so a resume that logged them anew died.
    tracker.log_params(parent, {"seed": 1, "ppo.clip": 0.2})
    tracker.log_params(parent, {"seed": 2, "ppo.clip": 0.2, "new": 3})
    params = tracker.client.get_run(parent.run_id).data.params
    assert (params["seed"], params["ppo.clip"], params["new"]) == ("1", "0.2", "3")


def test_a_process_that_takes_a_run_up_logs_only_new_steps_and_each_when_the_call_returns(
    tracker: Tracker, parent: Run
) -> None:
    # SkyRL #1929: metrics that waited in a buffer were lost with the process.
    tracker.log_step(parent, 3, {"loss": 1.5}, 3_000)
    script = f"""
import os, signal
from components.tracking import Tracker
tracker = Tracker({tracker.uri!r})
run = tracker.campaign({parent.key!r}, {{"seed": 1}}, {{}})
assert run.run_id == {parent.run_id!r}
print([tracker.log_step(run, step, {{"loss": 0.5}}, step * 1_000) for step in (3, 4)], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert done.stdout.strip().endswith("[False, True]")
    history = tracker.client.get_metric_history(parent.run_id, "loss")
    assert [(item.step, item.value) for item in history] == [(3, 1.5), (4, 0.5)]


class Guarded(ThreadingHTTPServer):
    """An MLflow that knows its experiment and nothing else, and whom it was asked by."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.who: set[str] = set()


class _Answer(BaseHTTPRequestHandler):
    server: Guarded

    def do_GET(self) -> None:
        self.server.who.add(self.headers["Authorization"])
        known = "/experiments/get" in self.path
        body = json.dumps({"experiment": {"experiment_id": "1", "name": EXPERIMENT, "lifecycle_stage": "active"}})
        self.send_response(200 if known else 500)
        self.end_headers()
        self.wfile.write(body.encode() if known else f"who is {self.headers['Authorization']}".encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def guarded(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")  # as it was, afterwards
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = Guarded()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    yield server
    server.shutdown()
    server.server_close()
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_experiment(EXPERIMENT)


def test_the_password_of_a_server_opens_it_and_is_in_no_error_and_no_line(
    guarded: Guarded, capfd: pytest.CaptureFixture[str]
) -> None:
    # MLflow prints its server's address at the end of a run and quotes it in errors, with the password that is in it.
    opened = Tracker(f"http://ops:hun%2Fter2@127.0.0.1:{guarded.server_port}")
    assert guarded.who == {"Basic " + base64.b64encode(b"ops:hun/ter2").decode()}
    with pytest.raises(ServiceError, match=r"MLflow at http://\*\*\*@127") as caught:
        opened.log_step(Run("r", "1", "k"), 0, {"loss": 1.0}, 1)
    guarded.shutdown()
    guarded.server_close()
    with pytest.raises(ServiceError, match=r"Max retries|refused") as away:
        Registry(opened, "c").alias("best")
    output = capfd.readouterr()
    told = [*traceback.format_exception(caught.value), *traceback.format_exception(away.value), output.out, output.err]
    assert "ter2" not in "".join(told)


def test_a_file_that_is_no_database_is_told_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("something else " * 100)
    with pytest.raises(ServiceError, match=f"MLflow at sqlite:///{tmp_path}.*file is not a database") as caught:
        Tracker(f"sqlite:///{tmp_path}/mlflow.db")
    assert caught.value.__suppress_context__, "the traceback of SQLAlchemy is not shown"
