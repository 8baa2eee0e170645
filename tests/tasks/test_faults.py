"""Faults that the logging of other projects' evaluations had (the public report is named)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from components.artifacts import LocalStore
from components.cluster import REPOSITORY
from components.config import load
from components.tracking import Tracker
from tasks import evaluate
from tasks.asks import Ask
from tasks.drive import Driven
from tasks.results import Checkpoint, Pool
from tests import services


def test_the_evaluation_of_a_leg_stands_at_its_own_index_once_though_the_process_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SkyRL #1929/#1784: an evaluation was logged at the step after its own, and a resumed run logged it once more.
    config = load(REPOSITORY / "configs" / "miniature.yaml")
    store, uri = LocalStore(tmp_path / "store"), services.database(tmp_path / "mlflow.db")
    opened: list[Tracker] = []
    crashes = [1]

    def driven(_: object, ask: Ask) -> Driven:
        stage, index, inputs = ask.stage, ask.index, ask.inputs
        parent = opened[-1].campaign("m-s1", {}, {})
        names = ("n", "pass_rate", "stderr", "assertions_passed", "turns_mean", "mean_reward", "infra_rate")
        result = {"label": inputs["label"], "checkpoint": inputs["checkpoint"], "score": {}}
        result |= {"suite": "heldout", "harness": "native", "profile": "miniature", "series": "s"}
        result |= dict.fromkeys(names, index / 10) | {"metrics": {"eval/pass_rate": index / 10}}
        return Driven(result, opened[-1].stage(parent, stage, {}), parent, store)

    def evaluated(*_: object) -> None:
        if index in crashes:
            crashes.remove(index)
            raise KeyboardInterrupt("stands for a kill after the figures were logged")

    monkeypatch.setattr(evaluate, "drive", driven)
    monkeypatch.setattr(evaluate, "create_table_artifact", lambda *_, **__: None)
    monkeypatch.setattr(evaluate.tracking, "tracker", lambda: opened[-1])
    monkeypatch.setattr(evaluate.tracking, "registry", lambda _: SimpleNamespace(evaluated=evaluated))

    def process(number: int) -> None:
        opened.append(Tracker(uri))
        leg = Checkpoint(f"leg-{number}", f"rl/{number}", 100 * number)
        evaluate.evaluate.fn(config, Pool("p", "d", 1, 0, 0.0), leg, 8, number)

    for index in range(3):
        if index in crashes:
            with pytest.raises(KeyboardInterrupt):
                process(index)
        process(index)
    history = opened[-1].client.get_metric_history(opened[-1].campaign("m-s1", {}, {}).run_id, "eval/pass_rate")
    assert [(point.step, point.value) for point in history] == [(0, 0.0), (1, 0.1), (2, 0.2)]
