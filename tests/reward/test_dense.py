"""The reward of Eq 20, its variants, and what happens when there is no report to count."""

from __future__ import annotations

import pytest

from components.records import AssertionOutcome, Reward, VerifierReport
from components.reward import dense_reward, read_report

PASSED, FAILED, SKIPPED = AssertionOutcome.PASSED, AssertionOutcome.FAILED, AssertionOutcome.SKIPPED


def report(outcome=False, **assertions):
    return VerifierReport(assertions, outcome, "assertions.jsonl")


def test_the_reward_is_the_number_of_passed_assertions_over_a_fixed_scale():
    assert dense_reward(report(a=PASSED, b=FAILED, c=PASSED), False) == Reward(0.1, 2, 3, False)


def test_the_reward_may_exceed_one():
    many = VerifierReport({str(i): PASSED for i in range(30)}, True, "junit")
    assert dense_reward(many, True).value == 1.5
    assert dense_reward(many, True, scale=40).value == 0.75


def test_only_assertions_that_failed_untouched_earn_credit():
    # harbor: doing nothing passes 24 of 27 assertions of one task, so a raw count pays for it.
    nothing = report(guard=PASSED, other=PASSED, goal=FAILED)
    assert dense_reward(nothing, False, credit="fail_to_pass", fail_to_pass=["goal"]) == Reward(0, 0, 1, False)
    done = report(True, guard=PASSED, other=PASSED, goal=PASSED)
    assert dense_reward(done, True, credit="fail_to_pass", fail_to_pass=["goal"]) == Reward(0.05, 1, 1, True)


def test_a_broken_guard_takes_the_outcome_away_but_not_the_credit():
    broken = report(True, guard=FAILED, goal=PASSED)
    assert dense_reward(broken, True, credit="fail_to_pass", fail_to_pass=("goal",)) == Reward(0.05, 1, 1, False)
    skipped = report(True, guard=SKIPPED, goal=PASSED)
    assert dense_reward(skipped, True, credit="fail_to_pass", fail_to_pass=("goal",)).outcome


def test_an_assertion_that_the_report_lacks_is_not_passed_and_stays_in_the_total():
    got = dense_reward(report(a=PASSED), False, credit="fail_to_pass", fail_to_pass=["a", "gone"])
    assert (got.passed, got.total) == (1, 2)


def test_credit_that_was_never_measured_is_refused():
    with pytest.raises(ValueError, match="curation measures them"):
        dense_reward(report(a=PASSED), False, credit="fail_to_pass")


@pytest.mark.parametrize(("outcome", "value"), [(False, 0.2), (True, 1.0)])
def test_ratio_pays_a_share_of_partial_work_and_all_of_solved_work(outcome, value):
    assert dense_reward(report(outcome, a=PASSED, b=FAILED), outcome, credit="ratio").value == pytest.approx(value)


def test_ratio_counts_over_fail_to_pass_when_it_is_known():
    got = dense_reward(report(guard=PASSED, goal=FAILED), False, credit="ratio", fail_to_pass=["goal"])
    assert (got.value, got.total) == (0, 1)
    assert dense_reward(report(guard=PASSED), True, credit="ratio", fail_to_pass=[]).value == 1


def test_binary_is_the_outcome_and_keeps_the_counts():
    assert dense_reward(report(a=PASSED, b=FAILED), False, credit="binary") == Reward(0, 1, 2, False)
    assert dense_reward(None, True, credit="binary") == Reward(1, 0, 0, True)


@pytest.mark.parametrize("outcome", [True, False])
def test_without_a_report_the_reward_is_the_outcome_tagged_with_the_cause(outcome):
    assert dense_reward(None, outcome) == Reward(float(outcome), 0, 0, outcome, "no report")
    unreadable = read_report("garbage", "ctrf")
    got = dense_reward(unreadable, outcome, credit="fail_to_pass", fail_to_pass=["a"])
    assert got.value == outcome
    assert got.fallback == unreadable.parse_cause
    verdict_only = VerifierReport({}, outcome, "reward.txt")
    assert dense_reward(verdict_only, outcome).fallback == "the report names no assertions"


def test_a_report_that_broke_off_is_not_counted_as_if_it_were_whole():
    cut = read_report('{"collected": ["a", "b"]}\n{"id": "a", "outcome": "passed"}\n', "assertions.jsonl")
    got = dense_reward(cut, False)
    assert (got.value, got.fallback) == (0, "the report breaks off: 1 of 2 assertions reported")


def test_a_scale_or_credit_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="scale"):
        dense_reward(None, True, scale=0)
    with pytest.raises(ValueError, match="unknown credit"):
        dense_reward(None, True, credit="average")
