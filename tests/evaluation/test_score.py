"""Scores of suites."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import RewardConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.evaluation import aggregate
from components.records import AssertionOutcome, TaskRef, Trial, Turn, VerifierReport


def trial(task, passed, attempt=1, *, category="files", difficulty="easy"):
    """One trial of two assertions, of which the first always passes; `passed` None is an infrastructure fault."""
    ref = TaskRef("pool", task, "d", category, difficulty=difficulty)
    name = f"{task}-{attempt}"
    if passed is None:
        return Trial(name, ref, (), None, None, InfraFault(FaultCause.SANDBOX, "gone"))
    second = AssertionOutcome.PASSED if passed else AssertionOutcome.FAILED
    report = VerifierReport({"a": AssertionOutcome.PASSED, "b": second}, passed, "assertions.jsonl")
    return Trial(name, ref, (), StopReason.COMPLETED, report, None)


def suite(*outcomes, **kind):
    return [trial(f"t{i}", outcome, **kind) for i, outcome in enumerate(outcomes)]


def test_faults_are_out_of_the_denominator_and_counted():
    score = aggregate(suite(True, False, None, None))
    assert score.resolved == 0.5
    assert (score.tasks, score.trials, score.faults, score.infra_rate) == (2, 2, 2, 0.5)


def test_trials_that_tampered_are_counted_where_it_was_looked_for():
    plain, *others = suite(True, False, False)
    looked = [replace(each, facts={"tampering": signs}) for each, signs in zip(others, ([], ["x"]), strict=True)]
    score = aggregate([plain, *looked])
    assert score.tampered == 1
    assert score.metrics("held")["eval/held/tampered"] == 1
    assert aggregate([plain]).tampered is None
    assert "eval/held/tampered" not in aggregate([plain]).metrics("held")


def test_one_attempt_a_task_has_the_standard_error_of_a_sample():
    score = aggregate(suite(True, True, True, False))
    assert score.resolved == 0.75
    assert score.stderr == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    assert score.pass_at_k == {}


@pytest.mark.parametrize(("solved", "published"), [(57, 64.0), (46, 51.7), (39, 43.8), (44, 49.4), (42, 47.2)])
def test_rates_are_those_of_the_papers_table_of_89_tasks(solved, published):
    """Terminal-Bench 2.1 (Table 1 of the paper, and its GRPO baseline). The error by hand is that of a proportion."""
    score = aggregate(suite(*[True] * solved, *[False] * (89 - solved)))
    assert round(100 * score.resolved, 1) == published
    share = solved / 89
    assert score.stderr == pytest.approx(math.sqrt(share * (1 - share) / 88))


def test_several_attempts_are_averaged_within_tasks_before_across_them():
    trials = [trial("a", True, n) for n in (1, 2, 3)] + [trial("b", n == 1, n) for n in (1, 2)]
    score = aggregate(trials)
    assert score.resolved == pytest.approx((1 + 0.5) / 2)
    assert score.stderr == pytest.approx(math.sqrt(0.5 * 0.5 / 1) / 2)


def test_a_score_names_the_estimator_of_its_standard_error_which_one_fault_may_change():
    # One fault that left one task a single attempt changed what the error is of, and nobody was told.
    whole = [trial(task, n == 1, n, category=task) for task in ("a", "b") for n in (1, 2)]
    score, less = aggregate(whole), aggregate([*whole[:3], trial("b", None, 2, category="b")])
    assert (score.stderr_estimator, less.stderr_estimator) == ("within_tasks", "across_tasks")
    assert {name: one.stderr_estimator for name, one in less.by_category.items()} == {"a": "within_tasks", "b": None}
    document = json.loads(json.dumps(less.to_json()))
    assert document["stderr_estimator"] == "across_tasks"
    assert document["by_category"]["a"]["stderr_estimator"] == "within_tasks"
    assert aggregate(suite(True, False)).stderr_estimator == "across_tasks"
    alone = aggregate(suite(True))
    assert (alone.stderr, alone.stderr_estimator) == (None, None), "no error, no estimator"
    assert aggregate([]).stderr_estimator is None


def test_pass_at_k_is_the_unbiased_estimate():
    trials = [trial("a", n <= 1, n) for n in (1, 2, 3, 4)]
    score = aggregate(trials)
    assert score.pass_at_k == pytest.approx({1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0})


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=5), min_size=1, max_size=6))
def test_pass_at_k_grows_with_k_and_starts_at_the_resolved_rate(tasks):
    trials = [trial(f"t{i}", won, n) for i, attempts in enumerate(tasks) for n, won in enumerate(attempts)]
    score = aggregate(trials)
    values = [score.pass_at_k[k] for k in sorted(score.pass_at_k)]
    assert values[0] == pytest.approx(score.resolved)
    assert values == sorted(values)


def test_classes_are_scored_apart():
    trials = [
        *suite(True, False, category="files"),
        trial("x", True, category="text", difficulty="hard"),
        trial("y", None, category="git", difficulty="hard"),
    ]
    score = aggregate(trials)
    assert {name: (c.tasks, c.resolved) for name, c in score.by_category.items()} == {
        "files": (2, 0.5),
        "text": (1, 1.0),
    }
    assert score.by_difficulty["hard"].resolved == 1.0
    assert score.by_difficulty["hard"].stderr is None


def test_assertions_and_reward_are_of_graded_trials_only():
    score = aggregate(suite(True, False, None), RewardConfig(credit="count", scale=20))
    assert score.assertions_passed == 0.75
    assert score.assertions == 4
    assert score.mean_reward == pytest.approx((2 / 20 + 1 / 20) / 2)
    assert score.stops["completed"] == 2


def test_a_reward_by_assertion_lists_is_absent_where_curation_has_not_measured_them():
    assert aggregate(suite(True), RewardConfig(credit="fail_to_pass")).mean_reward is None
    assert aggregate(suite(True)).mean_reward == pytest.approx(2 / 20)


def test_a_suite_without_a_verdict_has_no_rate_instead_of_zero():
    score = aggregate(suite(None, None))
    assert (score.resolved, score.stderr, score.mean_reward, score.turns_mean) == (None, None, None, None)
    assert score.infra_rate == 1.0
    assert aggregate([]).infra_rate is None
    assert "eval/heldout/resolved" not in score.metrics("heldout")


def test_a_score_is_plain_json_and_metrics():
    score = aggregate([trial("a", True, n, category="text files") for n in (1, 2)])
    again = json.loads(json.dumps(score.to_json(), allow_nan=False))
    assert again["resolved"] == 1.0
    assert again["pass_at_k"] == {"1": 1.0, "2": 1.0}
    metrics = score.metrics("heldout")
    assert metrics["eval/heldout/resolved"] == 1.0
    assert metrics["eval/heldout/pass_at_2"] == 1.0
    assert metrics["eval/heldout/resolved_by/category.text_files"] == 1.0


def test_the_three_denominators_tell_what_faults_and_budgets_hide():
    """By hand: of four tasks one is resolved, one ran out of turns, one failed, one has two faults and one success."""
    ended = [trial("won", True), trial("lost", False), replace(trial("late", False), stop=StopReason.TURN_LIMIT)]
    ended += [trial("flaky", None, 1), trial("flaky", None, 2), trial("flaky", True, 3)]
    found = aggregate(ended).denominators
    assert {name: (one.tasks, one.trials) for name, one in found.items()} == {
        "all": (4, 6),
        "graded": (4, 4),
        "finished": (3, 3),
    }
    assert found["all"].resolved == pytest.approx((1 + 0 + 0 + 1 / 3) / 4)
    assert found["graded"].resolved == pytest.approx((1 + 0 + 0 + 1) / 4)
    assert found["finished"].resolved == pytest.approx((1 + 0 + 1) / 3)
    metrics = aggregate(ended).metrics("s")
    assert (metrics["eval/s/trials_of/all"], metrics["eval/s/resolved_of/graded"]) == (6, 0.5)
    assert aggregate([trial("x", None)]).denominators["graded"].resolved is None
    assert aggregate([trial("x", None)]).denominators["all"].resolved == 0


def test_the_reward_of_the_verifiers_is_the_mean_of_their_numbers_and_not_the_resolved_rate():
    def wrote(task, number, attempt=1):
        return replace(trial(task, False, attempt), report=VerifierReport({}, number == 1, "reward.txt", None, number))

    score = aggregate([wrote("a", 0.5, 1), wrote("a", 1.0, 2), wrote("b", 0.25), trial("c", True)])
    assert score.verifier_reward == pytest.approx((0.75 + 0.25 + 1) / 3), "a verdict without a number is 1 or 0"
    assert score.resolved == pytest.approx((0.5 + 0 + 1) / 3)
    assert aggregate([]).verifier_reward is None


def test_turns_and_tokens_are_counted_from_the_record_or_taken_from_whoever_counted_them():
    turn = Turn(np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32), np.zeros(3, np.float32), None, 0, "stop")
    longer = replace(turn, prompt_ids=np.arange(9, dtype=np.int32))
    ours = replace(trial("a", True), turns=(turn, longer))
    theirs = replace(trial("b", True), facts={"turns": 6, "sampled_tokens": 30, "prompt_tokens": None})
    score = aggregate([ours, theirs])
    assert (score.turns_mean, score.sampled_tokens_mean, score.prompt_tokens_mean) == (4, (6 + 30) / 2, 14)
    assert score.by_category["files"].turns_mean == 4
    assert score.metrics("s")["eval/s/turns_by/difficulty.easy"] == 4
    unknown = replace(trial("c", True), facts={"turns": None, "sampled_tokens": None, "prompt_tokens": None})
    assert aggregate([unknown]).turns_mean is None, "what was not counted is absent"
