"""Failures planted into real legs of the miniature, each diagnosed by its name.

Smaller than the miniature, so that all of it takes minutes, and large enough that its model earns rewards: the real
stages, tasks, boxes, sampler and trainer.
"""

from __future__ import annotations

from typing import Any

import pytest

from components.cluster import Cluster
from components.diagnostics import Diagnosis, Finding, Severity, diagnose, read
from tests import services
from tests.jobs.conftest import SmallCampaign
from tests.planted_jobs import forced

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]
COMMON = (
    "pool.train_tasks=120",
    "pool.max_subtasks=5",
    "base.tokens=500000",
    "base.demonstrations.trajectories=1400",
    "base.demonstrations.repeats=450",
    "sft.tokens=90000",
    "sft.demonstrations.trajectories=500",
    "rl.leg_steps=9",
    "rollout.batch=24",
    "rollout.oversample=0.125",
    "harness.max_turns=12",
    "sampler.slots=48",
    "ppo.critic.only_steps=0",
    "ppo.critic.warmup=null",
)


class Planted:
    """One policy, from which legs of several configurations begin."""

    def __init__(self, campaign: SmallCampaign) -> None:
        self._campaign = campaign
        self._start = campaign.variant("planted", *COMMON)
        self.pool = self._start.run("curate", {})["pool"]
        base = self._start.run("base", {"pool": self.pool})
        sft = self._start.run("sft", {"pool": self.pool, "checkpoint": base["checkpoint"]})
        self._inputs = {"checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}

    def variant(self, name: str, *overrides: str) -> SmallCampaign:
        return self._campaign.variant(name, *COMMON, *overrides)

    def leg(self, variant: SmallCampaign, **inputs: Any) -> Diagnosis:
        """Runs a leg and diagnoses it from its store, as offline."""
        variant.run("rl", {**self._inputs, "pool": self.pool, **inputs}, index=1)
        return diagnose(*read(variant.store, variant.name))


@pytest.fixture(scope="module")
def planted(campaign: SmallCampaign) -> Planted:
    return Planted(campaign)


def finding(diagnosis: Diagnosis, name: str) -> Finding:
    (found,) = [each for each in diagnosis.findings if each.name == name]
    return found


@pytest.fixture(scope="module")
def cut(planted: Planted) -> Diagnosis:
    """A leg that launches twice its batch and forgets the tail, with a critic that nothing has warmed."""
    return planted.leg(planted.variant("cancelled", "rollout.tail=cancel", "rollout.oversample=1.0"))


def test_a_tail_that_is_cancelled_and_starves_a_class_is_named(cut: Diagnosis) -> None:
    found = finding(cut, "cancellation")
    assert found.severity >= Severity.WARN, found
    assert "difficulty.hard" in found.text


def test_a_critic_that_begins_cold_is_named(cut: Diagnosis) -> None:
    found = finding(cut, "critic")  # Red only where it does not climb, which a leg as short as this may still see.
    assert found.severity >= Severity.WARN, found


def test_nothing_is_red_of_a_leg_in_which_nothing_was_planted(planted: Planted) -> None:
    diagnosis = planted.leg(planted.variant("healthy", "ppo.critic.only_steps=3"))
    assert {each.name for each in diagnosis.findings if each.severity is Severity.RED} == set()
    found = finding(diagnosis, "cancellation")
    assert found.severity is Severity.OK, found


def test_binary_rewards_on_hard_tasks_are_named_as_no_signal(planted: Planted) -> None:
    hard = planted.variant("binary", "reward.credit=binary", "pool.min_subtasks=5", "pool.train_tasks=40")
    diagnosis = planted.leg(hard, pool=hard.run("curate", {})["pool"])
    assert finding(diagnosis, "zero_reward").severity is Severity.RED, finding(diagnosis, "zero_reward")
    found = finding(diagnosis, "granularity")
    assert found.severity is Severity.WARN, found
    assert "only the whole verdict is rewarded" in found.text


def test_a_summary_budget_that_fits_nowhere_is_named(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced past the check that refuses it, as the paper's was: nothing checked that one."""
    monkeypatch.setattr(forced.HarnessConfig, "_compaction_problems", forced.HarnessConfig._compaction_problems)
    forced.lift()
    budget = "summary_max_tokens: 24, questions_max_tokens: 12, answers_max_tokens: 12, margin_tokens: 0"
    compaction = f"harness.compaction={{proactive_threshold_tokens: 40, {budget}}}"
    variant = planted.variant("summary", compaction, "harness.max_context_tokens=128")
    variant.cluster = Cluster(services.ray(), variant.store, token=services.token(), package="tests.planted_jobs")
    found = finding(planted.leg(variant), "compactions")
    assert found.severity is Severity.RED, found
