"""The series of a step."""

from dataclasses import replace

import pytest

from components.errors import StopReason
from components.records import Trial
from components.rollout import Ledger, Origin, Outcome, rollout_metrics
from tests.rollout.parts import graded, report, reward, tasks, turns


def ledger_of(trials):
    ledger = Ledger(0)
    for trial in trials:
        ledger.launch(trial.trial_id, trial.task, 1, origin=Origin.DRAWN)
        ledger.end(trial.trial_id, Outcome.ADMITTED)
    return ledger


def test_means_stand_beside_their_counts():
    (first, second) = tasks(2)
    trials = [
        graded("a", first.ref, count=1),
        Trial("b", second.ref, turns(3), StopReason.TURN_LIMIT, report(False), None, {"sample": 1.5}),
    ]
    rewards = [reward(0.1), reward(0.05, passed=False)]
    metrics = rollout_metrics(trials, rewards, ledger_of(trials), seconds=9.0)
    assert metrics["rollout/reward_mean"] == pytest.approx(0.075)
    assert metrics["rollout/pass_rate"] == 0.5
    assert metrics["rollout/graded"] == 2
    assert metrics["rollout/assertions_passed"] == 1.0
    assert metrics["rollout/assertions_total"] == 4
    assert metrics["rollout/turns_mean"] == 2
    assert metrics["rollout/turns_p90"] == pytest.approx(2.8)
    assert metrics["rollout/tokens_mean"] == (8 + 18) / 2
    assert metrics["rollout/seconds"] == 9.0
    assert metrics["rollout/sample_s_mean"] == 1.0
    assert (metrics["stop/completed"], metrics["stop/turn_limit"], metrics["stop/gave_up"]) == (1, 1, 0)


def test_trials_that_tampered_are_counted_and_only_where_it_was_looked_for():
    (task,) = tasks(1)
    facts = [{"tampering": ["changed /bin/cat"], "left_running": []}, {"tampering": [], "left_running": []}]
    trials = [
        Trial(name, task.ref, turns(1), StopReason.COMPLETED, report(False), None, {}, fact)
        for name, fact in zip("ab", facts, strict=True)
    ]
    metrics = rollout_metrics(trials, [reward(0.0)] * 2, ledger_of(trials), seconds=1.0)
    assert (metrics["rollout/tampered"], metrics["rollout/left_running"]) == (1, 0)
    unseen = [graded("c", task.ref, count=1)]
    absent = rollout_metrics(unseen, [reward(0.0)], ledger_of(unseen), seconds=1.0)
    assert not {"rollout/tampered", "rollout/parse_failures"} & absent.keys()


def test_what_a_policy_repeats_breaks_and_earns_nothing_with_is_counted_where_it_can_be():
    (task,) = tasks(1)
    guarded = replace(task.ref, pass_to_pass=("b",))
    trials = [
        Trial("a", guarded, turns(3), StopReason.COMPLETED, report(False), None, {}, {"repeated_commands": 2}),
        Trial("b", guarded, turns(1), StopReason.COMPLETED, report(True), None, {}, {"repeated_commands": 0}),
        Trial("c", task.ref, turns(2), StopReason.COMPLETED, report(False), None),
    ]
    rewards = [reward(0.0), reward(0.1), reward(0.0)]
    metrics = rollout_metrics(trials, rewards, ledger_of(trials), seconds=1.0)
    assert metrics["rollout/zero_reward_share"] == pytest.approx(2 / 3)
    assert metrics["rollout/repeated_share"] == 0.5
    assert metrics["rollout/guards_broken"] == 1
    unguarded = rollout_metrics(trials[2:], rewards[2:], ledger_of(trials[2:]), seconds=1.0)
    assert not {"rollout/repeated_share", "rollout/guards_broken"} & set(unguarded)


def test_a_mean_over_nothing_is_absent():
    metrics = rollout_metrics([], [], Ledger(0), seconds=1.0)
    assert metrics["rollout/launched"] == 0
    assert not [
        name for name in metrics if name.endswith("_mean") or name.endswith("_passed") or name == "rollout/pass_rate"
    ]


def test_compactions_are_summed_over_the_trials_that_count_them_and_absent_where_none_does():
    (first, second) = tasks(2)
    counted = {"compactions_attempted": 2, "compactions_succeeded": 1}
    trials = [
        Trial("a", first.ref, turns(1), StopReason.COMPLETED, report(True), None, facts=counted),
        Trial("b", second.ref, turns(1), StopReason.COMPLETED, report(True), None),
    ]
    rewards = [reward(0.1), reward(0.1)]
    both = rollout_metrics(trials, rewards, ledger_of(trials), seconds=1.0)
    assert (both["rollout/compactions_attempted"], both["rollout/compactions_succeeded"]) == (2, 1)
    none = rollout_metrics(trials[1:], rewards[1:], ledger_of(trials), seconds=1.0)
    assert not [name for name in none if "compaction" in name and name.startswith("rollout/")]
