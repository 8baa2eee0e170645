"""The ledger."""

import json

import pytest

from components.errors import FaultCause, RecordError, StopReason
from components.records import TaskRef
from components.rollout import Ledger, Origin, Outcome, by_class
from components.rollout.ledger import KEY_CHARS, metric_key


def ref(name, category="files", difficulty="easy"):
    return TaskRef("pool", name, "d", category, ("seed",), difficulty=difficulty)


def filled():
    """Ten launched, two hard among them; both hard ones are cut."""
    ledger = Ledger(3)
    for number in range(10):
        hard = number >= 8
        ledger.launch(
            f"t{number}", ref(f"task-{number}", "text files", "hard" if hard else "easy"), 1, origin=Origin.DRAWN
        )
        outcome = Outcome.CANCELLED if hard else Outcome.ADMITTED
        ledger.end(f"t{number}", outcome, turns=number, tokens=10 * number, seconds=1.5)
    return ledger


def test_every_launched_trial_needs_exactly_one_outcome():
    ledger = Ledger(0)
    ledger.launch("t1", ref("a"), 1, origin=Origin.DRAWN)
    with pytest.raises(RecordError, match="1 trials have no outcome"):
        ledger.check()
    with pytest.raises(RecordError, match="launched twice"):
        ledger.launch("t1", ref("a"), 1, origin=Origin.DRAWN)
    ledger.end("t1", Outcome.ADMITTED)
    with pytest.raises(RecordError, match="already ended as admitted"):
        ledger.end("t1", Outcome.CANCELLED)
    with pytest.raises(RecordError, match="never launched"):
        ledger.end("t2", Outcome.CANCELLED)
    ledger.check()


def test_launched_is_the_sum_of_the_outcomes():
    metrics = filled().metrics()
    outcomes = ("admitted", "cancelled", "carried", "infra_faults")
    assert metrics["rollout/launched"] == 10 == sum(metrics[f"rollout/{name}"] for name in outcomes)


def test_what_is_cut_is_counted_by_class_and_shows_as_a_gap_of_its_share():
    metrics = filled().metrics()
    assert metrics["rollout/cancelled_by/difficulty.hard"] == 2
    assert metrics["rollout/cancelled_by/difficulty.easy"] == 0
    assert metrics["rollout/share_gap/difficulty.hard"] == pytest.approx(-0.2)
    assert metrics["rollout/share_gap/difficulty.easy"] == pytest.approx(0.2)
    assert metrics["rollout/share_gap/category.text_files"] == pytest.approx(0.0)
    assert metrics["rollout/cancelled_turns_mean"] == 8.5


def test_tasks_of_every_depth_of_lineage_are_a_class():
    ledger = Ledger(0)
    for number, lineage in enumerate([(), ("root",), ("root", "child"), ("root", "child")]):
        task = TaskRef("pool", f"task-{number}", "d", "files", lineage)
        ledger.launch(f"t{number}", task, 1, origin=Origin.DRAWN)
        ledger.end(f"t{number}", Outcome.CANCELLED if number == 3 else Outcome.ADMITTED)
    metrics = ledger.metrics()
    assert [metrics[f"rollout/cancelled_by/lineage_depth.{depth}"] for depth in range(3)] == [0, 0, 1]
    assert metrics["rollout/share_gap/lineage_depth.2"] == pytest.approx(1 / 3 - 1 / 2)


def test_a_task_that_faults_and_is_tried_again_was_submitted_once():
    ledger = Ledger(0)
    ledger.launch("t1", ref("a", difficulty="hard"), 1, origin=Origin.DRAWN)
    ledger.end("t1", Outcome.INFRA_FAULT, fault=FaultCause.SAMPLER)
    ledger.launch("t2", ref("a", difficulty="hard"), 2, origin=Origin.RELAUNCHED)
    ledger.end("t2", Outcome.ADMITTED, stop=StopReason.COMPLETED)
    ledger.launch("t3", ref("b"), 1, origin=Origin.DRAWN)
    ledger.end("t3", Outcome.ADMITTED)
    metrics = ledger.metrics()
    assert metrics["rollout/share_gap/difficulty.hard"] == 0
    assert metrics["fault/sampler"] == 1
    assert metrics["rollout/infra_faults"] == 1


def test_nothing_trained_has_no_share():
    ledger = Ledger(0)
    ledger.launch("t1", ref("a"), 1, origin=Origin.DRAWN)
    ledger.end("t1", Outcome.INFRA_FAULT, fault=FaultCause.SANDBOX)
    assert not [name for name in ledger.metrics() if "share_gap" in name]


def test_rows_survive_json():
    ledger = filled()
    ledger.launch("f", ref("x"), 1, origin=Origin.DRAWN)
    ledger.end("f", Outcome.INFRA_FAULT, fault=FaultCause.IMAGE, stop=StopReason.GAVE_UP, detail="no such image")
    again = Ledger.from_records(3, json.loads(json.dumps(ledger.records())))
    assert again.rows == ledger.rows


def test_what_became_of_every_class_is_told_by_kind_and_by_size():
    ledger = filled()
    ledger.launch("c", ref("x"), 1, origin=Origin.RESUMED)
    ledger.end("c", Outcome.CONTINUED, turns=1, tokens=5, seconds=0.4)
    ledger.launch("f", ref("y"), 1, origin=Origin.RELAUNCHED)
    ledger.end("f", Outcome.INFRA_FAULT, fault=FaultCause.IMAGE)
    rows = by_class([*ledger.rows, *ledger.rows])  # as those of two steps
    for row in rows:
        assert row["launched"] + row["resumed"] == sum(row[outcome.value] for outcome in Outcome)
    totals = {}
    for row in rows:
        totals[row["column"]] = totals.get(row["column"], 0) + row["launched"] + row["resumed"]
    columns = ("category", "difficulty", "lineage_depth", "turns", "tokens", "seconds")
    assert totals == dict.fromkeys(columns, 24)
    found = {(row["column"], row["class"]): row for row in rows}
    hard = found["difficulty", "hard"]
    assert (hard["launched"], hard["cancelled"], hard["drawn_share"], hard["admitted_share"]) == (4, 4, 0.2, 0.0)
    names = [row["class"] for row in rows if row["column"] == "turns"]
    assert names == ["0", "1", "2 to 3", "4 to 7", "8 to 15", "unknown"]
    assert [found["turns", name]["cancelled"] for name in names] == [0, 0, 0, 0, 4, 0]
    assert (found["turns", "1"]["continued"], found["turns", "1"]["resumed"]) == (2, 2)
    assert found["turns", "unknown"]["infra_fault"] == 2
    assert found["seconds", "0"]["continued"] == 2


def test_the_size_of_what_is_carried_is_told_as_of_what_is_cancelled():
    ledger = Ledger(0)
    for name, outcome, turns in (("a", Outcome.CARRIED, 3), ("b", Outcome.CONTINUED, 6), ("c", Outcome.ADMITTED, 1)):
        ledger.launch(name, ref(name), 1, origin=Origin.RESUMED if name == "b" else Origin.DRAWN)
        ledger.end(name, outcome, turns=turns)
    metrics = ledger.metrics()
    assert metrics["rollout/carried_turns_mean"] == 4.5
    assert "rollout/cancelled_turns_mean" not in metrics
    assert "rollout/carried_tokens_mean" not in metrics


def test_no_class_of_a_step_without_an_admission_has_a_share():
    ledger = Ledger(0)
    ledger.launch("t1", ref("a"), 1, origin=Origin.RESUMED)
    ledger.end("t1", Outcome.CONTINUED)
    assert {(row["drawn_share"], row["admitted_share"]) for row in by_class(ledger.rows)} == {(None, None)}


def test_a_class_of_any_name_is_a_name_of_mlflows_and_long_ones_stay_apart():
    names = ["hard", "data science/à", "x" * 300 + "a", "x" * 300 + "b"]
    keys = [metric_key(f"category.{name}") for name in names]
    assert keys[:2] == ["category.hard", "category.data_science__"]
    assert len(set(keys)) == len(names)
    assert max(map(len, keys)) == KEY_CHARS
