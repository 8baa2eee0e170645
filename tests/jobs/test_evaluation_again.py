"""An evaluation that is tried again after a kill: what is kept of its trials. A stand-in runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import load
from components.evaluation import load_suite
from components.jobs import evaluate
from components.jobs.job import Job
from components.pool import Task
from components.records import Trial
from components.rollout import Attempt
from tests.evaluation.parts import write_task
from tests.rollout.parts import faulted, graded

CONFIG = Path(__file__).parents[2] / "configs" / "miniature.yaml"


class Worlds:
    """Runs trials until it has run `most`; says which."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
        self.ran: list[tuple[str, int]] = []
        self.most = 100
        self._config = config
        monkeypatch.setattr(evaluate, "open_world", self._open)

    @asynccontextmanager
    async def _open(self, *_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(config=self._config, run=self._run)

    async def _run(self, attempt: Attempt[Task], *_: object, **__: object) -> Trial:
        if len(self.ran) == self.most:
            raise ZeroDivisionError("stands for a kill")
        self.ran.append((attempt.task.ref.task_id, attempt.attempt))
        if attempt.task.ref.task_id == "write-0" and attempt.attempt == 1:
            return faulted(attempt.trial_id, attempt.task.ref)
        return graded(attempt.trial_id, attempt.task.ref)


def test_a_killed_evaluation_runs_no_trial_again_that_was_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        write_task(tmp_path / "suite" / f"write-{number}")
    overrides = [f"evaluation.suites=[{{name: local, path: {tmp_path / 'suite'}}}]", "rollout.concurrency=1"]
    config = load(CONFIG, overrides)
    suite = load_suite(config.evaluation.suite("local"), config.sandbox)

    def run(checkpoint: str) -> list[Trial]:
        inputs = {"suite": "local", "label": "sft", "checkpoint": checkpoint}
        job = Job("evaluate", "c-s1", 1, config, inputs, LocalStore(tmp_path / "store"), tmp_path / "scratch")
        return asyncio.run(evaluate._run(job, config, tmp_path, suite))

    worlds = Worlds(monkeypatch, config)
    worlds.most = 3
    with pytest.raises(ZeroDivisionError):
        run("a")
    assert worlds.ran == [("write-0", 1), ("write-0", 2), ("write-1", 1)]
    worlds.ran.clear()
    trials = run("a")
    assert worlds.ran == [("write-2", 1), ("write-3", 1)]
    assert [trial.task.task_id for trial in trials] == [f"write-{number}" for number in range(4)]
    assert all(trial.report is not None for trial in trials)
    worlds.ran.clear()
    worlds.most = 100
    run("b")
    assert len(worlds.ran) == 5, "trials of another checkpoint are not this one's"
