"""A night is compared with the latest night before it, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.records import Reward
from components.rollout import Ledger, Origin, Outcome, save_batch
from tasks import comparison
from tests.evaluation.test_score import suite

FOLDER = "campaigns/mini-s1/evaluate"


def put(store: LocalStore, folder: Path, label: str, *outcomes: bool) -> str:
    trials, ledger, key = suite(*outcomes), Ledger(0), f"{FOLDER}/{label}/trials"
    for each in trials:
        ledger.launch(each.trial_id, each.task, 1, origin=Origin.DRAWN)
        ledger.end(each.trial_id, Outcome.ADMITTED, turns=0, tokens=0, seconds=1.0, stop=each.stop, fault=None)
    save_batch(folder / label, trials, [], [Reward(0.0, False, 1, 2)] * len(trials), ledger)
    store.put_tree(key, folder / label)
    return key


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the person on call would see."""
    said: dict[str, list[Any]] = {"artifact": [], "event": [], "series": [], "warning": []}
    monkeypatch.setattr(comparison, "create_markdown_artifact", lambda text, key: said["artifact"].append((key, text)))
    monkeypatch.setattr(comparison, "emit_event", lambda name, **parts: said["event"].append((name, parts)))
    logger = SimpleNamespace(warning=lambda text, *values: said["warning"].append(text % values))
    monkeypatch.setattr(comparison, "get_run_logger", lambda: logger)
    tracker = SimpleNamespace(log_step=lambda run, step, values, at, part: said["series"].append((step, part, values)))
    monkeypatch.setattr(comparison.tracking, "tracker", lambda: tracker)
    return said


def test_the_night_before_is_the_latest_of_another_day(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    labels = ("2026-11-03-leg-1", "2026-11-27-leg-2", "2026-11-29-leg-2", "2026-11-30-leg-3", "leg-3", "sft")
    keys = {label: put(store, tmp_path, label, True) for label in labels}
    assert comparison.night_before(store, keys["2026-11-30-leg-3"]) == keys["2026-11-29-leg-2"]
    assert comparison.night_before(store, keys["2026-11-29-leg-2"]) == keys["2026-11-27-leg-2"]
    assert comparison.night_before(store, keys["2026-11-03-leg-1"]) is None
    assert comparison.night_before(store, keys["leg-3"]) is None, "a campaign's own evaluations are no nights"
    suite = put(store, tmp_path, "tb/2026-11-29-leg-9", True)
    assert comparison.night_before(store, keys["2026-11-30-leg-3"]) == keys["2026-11-29-leg-2"], "of the same suite"
    assert comparison.night_before(store, suite) is None


def test_of_a_night_of_several_checkpoints_the_newest_counts_and_for_an_older_one_none_that_is_newer(
    tmp_path: Path,
) -> None:
    # Who evaluated the SFT checkpoint beside the newest one had it compared with last night's leg, and got an alert.
    store = LocalStore(tmp_path / "store")
    labels = ("2026-11-28-base", "2026-11-29-leg-9", "2026-11-29-leg-10", "2026-11-29-sft")
    keys = {label: put(store, tmp_path, label, True) for label in labels}

    def before(checkpoint: str) -> str | None:
        return comparison.night_before(store, f"{FOLDER}/2026-11-30-{checkpoint}/trials")

    assert before("leg-10") == before("leg-11") == keys["2026-11-29-leg-10"]
    assert before("leg-9") == keys["2026-11-29-leg-9"]
    assert before("leg-2") == before("sft") == keys["2026-11-29-sft"]
    assert before("base") == keys["2026-11-28-base"]


def test_a_worse_checkpoint_is_told_with_an_event_and_a_better_one_without(
    tmp_path: Path, told: dict[str, list[Any]]
) -> None:
    store = LocalStore(tmp_path / "store")
    first, second, third = (
        put(store, tmp_path, label, *[True] * passed, *[False] * (20 - passed))
        for label, passed in (("2026-11-28-leg-1", 20), ("2026-11-29-leg-2", 9), ("2026-11-30-leg-3", 20))
    )
    for night in (first, second, third):
        comparison.compare_with_last_night(store, None, "Mini-s1", "held", night, 1_007, "held.leg")

    assert [key for key, _ in told["artifact"]] == ["mini-s1-held-nightly-comparison"] * 2, (
        "the first has nothing before it"
    )
    assert told["artifact"][0][1].startswith(
        "# 2026-11-29-leg-2 beside 2026-11-28-leg-1 on held\n\n**worse**: 100.0% → 45.0%"
    )
    assert [(step, part) for step, part, _ in told["series"]] == [(1_007, "held.leg.vs_previous")] * 2
    assert told["series"][0][2]["eval/held/vs_previous/regressed"] == 11
    [(name, event)] = told["event"]
    assert name == comparison.REGRESSED
    assert event["resource"]["prefect.resource.id"] == "longshell.campaign.Mini-s1"
    assert (event["payload"]["previous"], event["payload"]["verdict"]) == ("2026-11-28-leg-1", "worse")
    assert told["warning"] == ["2026-11-29-leg-2 on held is worse than 2026-11-28-leg-1: -55.0 points"]


def test_a_night_that_cannot_be_compared_is_told_and_its_evaluation_stands(
    tmp_path: Path, told: dict[str, list[Any]]
) -> None:
    store = LocalStore(tmp_path / "store")
    put(store, tmp_path, "2026-11-28-leg-1", True)
    second = put(store, tmp_path, "2026-11-29-leg-2")
    comparison.compare_with_last_night(store, None, "mini-s1", "held", second, 1_007, "held.leg")
    assert told["warning"][0].startswith("2026-11-29-leg-2 is not compared with 2026-11-28-leg-1: no task in common")
    assert not told["artifact"] + told["event"] + told["series"]
