"""The ledger."""

import json

import pytest

from components.errors import FaultCause, RecordError, StopReason
from components.records import TaskRef
from components.rollout import Ledger, Origin, Outcome


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
