"""Faults that the logging of other projects had (the public report is named)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from components.tracking import Run, Tracker

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
