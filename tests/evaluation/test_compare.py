"""Whether one checkpoint is better than another, held against hand-computed numbers and simulated truths."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.evaluation.__main__ import main
from components.evaluation.compare import Change, compare, describe, mean_interval, rates
from components.records import Reward
from components.rollout import Ledger, Origin, Outcome, save_batch
from tests.evaluation.test_score import suite, trial


def one_each(*outcomes: int) -> dict[tuple[str, str], float]:
    return {(f"t{number:02}", "d"): float(outcome) for number, outcome in enumerate(outcomes)}


def test_figures_are_those_computed_by_hand() -> None:
    found = compare(one_each(0, 0, 0, 0, 0, 0, 0, 0, 1, 1), one_each(1, 1, 1, 1, 1, 1, 0, 0, 1, 0))
    assert (found.tasks, found.before, found.after) == (10, 0.2, 0.7)
    assert found.difference == pytest.approx(0.5)
    # Seven ones, of which one is negative: variance (7 - 10 * 0.25) / 9 = 0.5; t(0.975, 9) = 2.262157.
    half = 2.262157 * math.sqrt(0.5 / 10)
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert found.sign_p == pytest.approx(2 * (1 + 7) / 2**7), "six of seven changes are gains"
    assert found.verdict == "not told apart"
    assert found.regressions == (Change("t09", 1.0, 0.0),)


def test_figures_are_those_of_published_tables() -> None:
    """Student (Biometrika 6, 1908, p. 20): hours of sleep that ten patients gained by two drugs. The interval of the
    difference, 0.7001142 to 2.4598858, is the one that R's manual prints (`t.test`, data set `sleep`)."""
    one = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    other = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    slept = [{(str(number), "d"): hours for number, hours in enumerate(each)} for each in (one, other)]
    found = compare(*slept)
    assert (found.before, found.after, found.difference) == pytest.approx((0.75, 2.33, 1.58))
    assert found.interval == pytest.approx((0.7001142, 2.4598858), abs=5e-8)
    assert (len(found.gains), found.sign_p) == (9, pytest.approx(2 / 2**9)), "all of the nine that changed"
    assert found.verdict == "better"


def test_a_word_is_said_where_the_interval_does_not_hold_zero() -> None:
    weak, strong = one_each(*[0] * 12, *[1] * 8), one_each(*[1] * 12, *[1] * 8)
    assert (compare(weak, strong).verdict, compare(strong, weak).verdict) == ("better", "worse")
    assert compare(weak, weak).verdict == "not told apart"
    assert compare(weak, weak).sign_p is None
    everything = compare(one_each(0, 0, 0), one_each(1, 1, 1))
    assert (everything.interval, everything.verdict) == (None, "not told apart"), "equal differences tell no spread"
    assert "no spread" in describe(everything)
    assert compare(one_each(*[1] * 20), one_each(*[0] * 20)).verdict == "worse", "every task of many was lost"


def test_tasks_are_paired_by_name_and_content_and_attempts_are_averaged_first() -> None:
    before = rates([trial("a", True, 1), trial("a", False, 2), trial("b", False), trial("gone", True)])
    after = rates([trial("a", True), trial("b", None, 1), trial("b", True, 2), trial("c", None)])
    assert before == {("a", "d"): 0.5, ("b", "d"): 0.0, ("gone", "d"): 1.0}
    found = compare(before, after)
    assert found.gains == (Change("b", 0.0, 1.0), Change("a", 0.5, 1.0))
    assert found.unpaired == ("gone",)
    with pytest.raises(ValueError, match="no task in common"):
        compare({("a", "one"): 1.0}, {("a", "another"): 1.0})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_swapping_the_two_turns_the_answer_round(pairs: list[tuple[int, int]]) -> None:
    before, after = ({(str(n), "d"): each[side] / 4 for n, each in enumerate(pairs)} for side in (0, 1))
    one, other = compare(before, after), compare(after, before)
    assert one.difference == pytest.approx(-other.difference)
    assert one.gains == tuple(Change(each.task_id, each.after, each.before) for each in other.regressions)
    assert one.sign_p == other.sign_p
    opposite = {"better": "worse", "worse": "better", "not told apart": "not told apart"}
    assert one.verdict == opposite[other.verdict]
    if one.interval is not None and other.interval is not None:
        assert one.interval == pytest.approx([-bound for bound in reversed(other.interval)])


@pytest.mark.parametrize(("tasks", "up", "down"), [(64, 0.2, 0.1), (89, 0.15, 0.05), (256, 0.05, 0.02)])
def test_intervals_hold_the_truth_as_often_as_they_say(tasks: int, up: float, down: float) -> None:
    draw, rounds, held = random.Random(tasks), 4_000, 0
    for _ in range(rounds):
        values = draw.choices((1.0, -1.0, 0.0), (up, down, 1 - up - down), k=tasks)
        low, high = mean_interval(values) or (0.0, 0.0)
        held += low <= up - down <= high
    assert held / rounds == pytest.approx(0.95, abs=0.015)


def test_the_command_compares_two_folders_of_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, outcomes in (("before", [True] * 20), ("after", [False] * 9 + [True] * 11), ("other", [])):
        trials, ledger = suite(*outcomes), Ledger(0)
        for each in trials:
            ledger.launch(each.trial_id, each.task, 1, origin=Origin.DRAWN)
            ledger.end(each.trial_id, Outcome.ADMITTED, turns=0, tokens=0, seconds=1.0, stop=each.stop, fault=None)
        save_batch(tmp_path / name, trials, [], [Reward(0.0, False, 1, 2)] * len(trials), ledger)

    assert main([str(tmp_path / "before"), str(tmp_path / "after")]) == 1
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("**worse**: 100.0% → 55.0% over 20 tasks (-45.0%; 95 % within -68.9% … -21.1%, sign test")
    assert (second, rest[0]) == ("9 regressions:", "- t0: 100% → 0%")
    assert main([str(tmp_path / "after"), str(tmp_path / "before"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "better"
    for refused, why in (("other", "no task in common"), ("missing", "cannot be read")):
        assert main([str(tmp_path / "before"), str(tmp_path / refused)]) == 2
        assert why in capsys.readouterr().err
