"""What a person sees of an evaluation: a table whose every row says who ran it, and a line with its caveats."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.cluster import REPOSITORY
from components.config import HELDOUT, load
from components.evaluation import aggregate
from components.tracking import Tracker
from tasks import evaluate
from tasks.asks import NIGHTLY_INDEX
from tasks.drive import Driven
from tasks.evaluate import _artifact_key, describe, rows_of
from tasks.results import Checkpoint, Score
from tests import services
from tests.evaluation.test_score import trial

LEG = Checkpoint("leg-1", "legs/1", 10)


def result(**changes: Any) -> dict[str, Any]:
    score = aggregate([trial("a", True), trial("b", False, difficulty="hard"), trial("c", None)])
    return {
        "label": "sft",
        "suite": "tb",
        "harness": "harbor 0.25.0 terminus-2",
        "profile": "t1_table",
        "n": score.trials,
        "pass_rate": score.resolved,
        "stderr": score.stderr,
        "stderr_estimator": score.stderr_estimator,
        "assertions_passed": score.assertions_passed,
        "turns_mean": score.turns_mean,
        "infra_rate": score.infra_rate,
        "headline": {"name": "resolved", "value": score.resolved},
        "caveats": ["2 of the 89 tasks of the benchmark were run"],
        "score": score.to_json(),
    } | changes


def test_every_row_names_harness_and_profile_and_the_denominators_stand_beside_each_other() -> None:
    rows = rows_of(result())
    assert {(row["harness"], row["profile"]) for row in rows} == {("harbor 0.25.0 terminus-2", "t1_table")}
    by_name = {row["tasks"]: row for row in rows}
    assert (by_name["all"]["n"], by_name["all"]["pass_rate"]) == (2, 0.5)
    assert (by_name["trials: all"]["n"], by_name["trials: graded"]["n"]) == (3, 2)
    assert by_name["difficulty: hard"]["pass_rate"] == 0
    assert (by_name["all"]["stderr_estimator"], by_name["difficulty: hard"]["stderr_estimator"]) == (
        "across_tasks",
        None,
    )


def test_the_description_says_what_is_missing_and_which_number_stands_for_the_suite() -> None:
    first, second = describe(Score.of(result(), 0)).split(". ")
    assert first == "sft on tb, 2 trials, profile t1_table, by harbor 0.25.0 terminus-2"
    assert second == "2 of the 89 tasks of the benchmark were run"
    other = result(headline={"name": "verifier_reward", "value": None}, caveats=[])
    assert describe(Score.of(other, 0)).endswith("; its number is verifier_reward: none")


@pytest.mark.parametrize("index", [3, NIGHTLY_INDEX + 739_000])
@pytest.mark.parametrize(("suite", "told"), [(HELDOUT, [("legs/1", 0.5)]), ("tb", [])])
def test_the_best_checkpoint_is_told_by_held_out_tasks_in_a_campaign_or_at_night_and_by_no_suite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: int, suite: str, told: list[tuple[str, float]]
) -> None:
    noted: list[tuple[str, float]] = []
    registry = SimpleNamespace(evaluated=lambda *args: noted.append(args))
    monkeypatch.setattr(evaluate.tracking, "registry", lambda name: registry)
    monkeypatch.setattr(evaluate.tracking, "tracker", lambda: SimpleNamespace(log_step=lambda *_: True))
    monkeypatch.setattr(evaluate, "create_table_artifact", lambda *_, **__: None)
    found = result(suite=suite, checkpoint="legs/1", metrics={}, series=f"{suite}.m.native", mean_reward=0.5)
    driven = Driven(found, "run", "parent", LocalStore(tmp_path))
    config = load(REPOSITORY / "configs" / "miniature.yaml")
    evaluate._record(config, driven, Score.of(found, 10), index, LEG)
    assert noted == told


def test_the_numbers_of_every_suite_and_every_checkpoint_of_a_night_get_into_mlflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The step of a night is its day: of two checkpoints that were evaluated in one, the second was taken for the first.
    tracker = Tracker(services.database(tmp_path / "mlflow.db"), tmp_path / "artifacts")
    run = tracker.stage(tracker.campaign("mini-s1", {}, {}), "evaluate", {})
    monkeypatch.setattr(evaluate.tracking, "tracker", lambda: tracker)
    monkeypatch.setattr(evaluate, "create_table_artifact", lambda *_, **__: None)
    config = load(REPOSITORY / "configs" / "miniature.yaml")
    night, parts = NIGHTLY_INDEX + 739_000, ["tb.m.harbor", "ours.m.harbor"]
    for checkpoint, rate in ((LEG, 0.5), (Checkpoint("base", "base", 0), 0.25), (LEG, 0.75)):
        for part in parts:
            found = result(metrics={f"eval/{part}/resolved": rate}, series=part, checkpoint="x", mean_reward=0.5)
            driven = Driven(found, run, run, LocalStore(tmp_path))
            evaluate._record(config, driven, Score.of(found, 10), night, checkpoint)
    for part in parts:
        history = tracker.client.get_metric_history(run.run_id, f"eval/{part}/resolved")
        assert sorted((each.step, each.value) for each in history) == [(night, 0.25), (night, 0.5)], "each once"


def test_an_artifacts_key_is_one_that_prefect_takes() -> None:
    key = _artifact_key("mini-s1", "2026-11-30-leg-1", "tb.t1_table.harbor")
    assert key == "mini-s1-2026-11-30-leg-1-tb-t1-table-harbor"
    assert re.fullmatch(r"[a-z0-9-]+", key)
