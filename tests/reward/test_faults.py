"""Faults that the rewards of other projects had (the public report is named)."""

from __future__ import annotations

import pytest

from components.config import RewardConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.learning.batch import reward_of
from components.records import TaskRef, Trial
from components.reward import dense_reward, parse_report

TASK = TaskRef("pool", "task", "d", "files", ("a", "b"), fail_to_pass=("a", "b"))
LINES = '{"collected": ["a", "b"]}\n{"id": "a", "outcome": "%s"}\n{"id": "b", "outcome": "%s"}\n'
DONE = '{"finished": true}\n'


def test_a_verifier_that_wrote_no_verdict_has_none_and_it_is_not_zero() -> None:
    # NeMo-Gym #2552/#2611, OpenEnv #1025, rllm #710: 1,172 of 1,280 rollouts trained on a reward of 0 nobody gave.
    report = parse_report(LINES % ("passed", "passed"), "assertions.jsonl")
    assert report.outcome is None
    assert report.parse_cause is not None
    assert "breaks off" in report.parse_cause


def test_a_trial_that_faulted_earns_no_reward_at_all() -> None:
    # miles #2802, NeMo-RL #431: infrastructure time-outs were trained as failures of the policy.
    trial = Trial("t", TASK, (), None, None, InfraFault(FaultCause.SANDBOX, "gone"))
    with pytest.raises(ValueError, match="no reward, not zero"):
        reward_of(trial, RewardConfig())


def test_a_verdict_of_zero_is_a_zero() -> None:
    report = parse_report(LINES % ("failed", "failed") + DONE, "assertions.jsonl")
    assert report.outcome is False
    trial = Trial("t", TASK, (), StopReason.COMPLETED, report, None)
    assert reward_of(trial, RewardConfig()).value == 0
    assert reward_of(trial, RewardConfig()).fallback is None


def test_a_reward_that_falls_back_to_the_outcome_says_why() -> None:
    # The kind behind the rows above: nothing is filled in silently.
    reward = dense_reward(None, True)
    assert (reward.value, reward.outcome) == (1.0, True)
    assert reward.fallback
