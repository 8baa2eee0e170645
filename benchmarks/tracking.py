"""What MLflow costs a step: the metrics of a step of RL logged at the start of a run, and after hundreds of others.

Into the database of SQLite that a campaign without a server has. A flow task reads the steps that are there once, when
it takes a run up: that is given apart.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe
from components.tracking import Run, Tracker

STEPS = 400
METRICS = 120
"""As many as a step of the miniature logs (117), rounded up."""
MEASURED = 50


def main() -> None:
    """Prints {"first_ms", "last_ms", "taken_up_ms", …}."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        tracker = Tracker(uri, Path(folder))
        run = tracker.campaign("benchmark-s1", {}, {})
        seconds = [_log(tracker, run, step) for step in range(STEPS)]
        again = Tracker(uri, Path(folder))
        taken_up = _log(again, again.campaign("benchmark-s1", {}, {}), STEPS)
    figures = {
        "first_ms": _median_ms(seconds[:MEASURED]),
        "last_ms": _median_ms(seconds[-MEASURED:]),
        "taken_up_ms": round(1e3 * taken_up, 1),
        "steps": STEPS,
        "metrics": METRICS,
        "machine": describe(),
    }
    print(json.dumps(figures))


def _log(tracker: Tracker, run: Run, step: int) -> float:
    started = time.perf_counter()
    tracker.log_step(run, step, {f"metric/{number}": step + number / 7 for number in range(METRICS)}, 1_000 * step)
    return time.perf_counter() - started


def _median_ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 1)


if __name__ == "__main__":
    main()
