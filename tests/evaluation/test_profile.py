"""Profiles: which conditions are in force, and what they leave to the campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import CampaignConfig, load
from components.errors import ConfigError
from components.evaluation import conditions_of, sampling_of, under_profile, walled
from components.pool import load_task
from components.records import Sampling
from tests.evaluation.parts import write_task

CONFIGS = Path(__file__).parents[2] / "configs"


def miniature(*overrides: str) -> CampaignConfig:
    return load(CONFIGS / "miniature.yaml", overrides)


def paper(profile: str) -> CampaignConfig:
    return load(CONFIGS / "t1-122b.yaml", [f"evaluation.profile={profile}"])


def test_the_miniature_evaluates_under_its_own_limits_and_samples_as_the_paper() -> None:
    config = miniature()
    assert under_profile(config) == config
    assert sampling_of(config.evaluation) == Sampling(0.1, 0.95, 20)
    assert config.evaluation.conditions.attempts == 1


@pytest.mark.parametrize(
    ("profile", "attempts", "turns", "context", "answer", "agent_s", "total_s"),
    [
        ("t1_table", 3, 60, 96_000, 8_192, 3_600, 18_000),  # section 6.1
        ("t1_case", 3, 500, 86_016, 32_768, 3_600, 18_000),  # appendix C
        ("leaderboard", 5, 1_000_000, 86_016, 8_192, 86_400, 3 * 86_400),
    ],
)
def test_a_profile_puts_its_limits_in_force(
    profile: str, attempts: int, turns: int, context: int, answer: int, agent_s: float, total_s: float
) -> None:
    config = under_profile(paper(profile))
    assert config.evaluation.conditions.attempts == attempts
    harness, rollout = config.harness, config.rollout
    assert (harness.max_turns, harness.max_context_tokens, harness.max_turn_tokens) == (turns, context, answer)
    assert (rollout.agent_timeout_s, rollout.remote_timeout_s) == (agent_s, total_s)
    assert harness.compaction is not None
    assert sampling_of(config.evaluation) == Sampling(0.1, 0.95, 20)
    told = conditions_of(config, "tb", "native").to_json()
    assert (told["limits"]["max_turns"], told["harness"], told["thinking"]) == (turns, "native", False)


def test_the_papers_hour_holds_for_every_task_and_the_leaderboards_timeouts_are_the_tasks_own(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path / "t", agent_s=12_000, verifier_s=30))
    table = walled(task, paper("t1_table").evaluation)
    assert (table.agent_timeout_s, table.verifier_timeout_s) == (3_600, 900)
    assert table.ref == task.ref, "the task is still the task"
    assert walled(task, paper("leaderboard").evaluation) == task
    assert walled(task, miniature().evaluation) == task


def test_the_series_names_suite_profile_and_harness() -> None:
    config = under_profile(paper("t1_table"))
    assert conditions_of(config, "tb", "harbor 0.25.0, terminus-2").series == "tb.t1_table.harbor"


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (("evaluation.profile=t1_table",), ("context of 96000 tokens, sampler.context_tokens is 512", "which budget")),
        (("evaluation.profile=t1_fast",), ("evaluation.profile",)),
        (("evaluation.temperature=0.5",), ("evaluation.temperature",)),
        (("evaluation.suites=[{name: a, path: here}]",), ("must be absolute",)),
        (("evaluation.suites=[{name: heldout, path: /x}]",), ("own held-out tasks",)),
        (("evaluation.suites=[{name: a, path: /x}, {name: a, path: /y}]",), ("a is given twice",)),
        (("evaluation.suites=[{name: a, path: /x, benchmark: swe}]",), ("benchmark",)),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_its_place(
    overrides: tuple[str, ...], problems: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        miniature(*overrides)
    assert all(problem in str(refused.value) for problem in problems)


@pytest.mark.parametrize(
    ("profile", "override", "problem"),
    [
        ("t1_table", "harness.compaction.proactive_threshold_tokens=90000", "90000 free of max_context_tokens 96000"),
        ("t1_case", "harness.compaction.proactive_threshold_tokens=90000", "90000 free of max_context_tokens 86016"),
        ("t1_table", "harness.max_turn_tokens=100000", "max_turn_tokens leaves no room"),
    ],
)
def test_limits_that_go_with_the_campaigns_but_not_with_the_profiles_are_refused_before_training(
    profile: str, override: str, problem: str
) -> None:
    # They were accepted, and refused by the evaluation, after the training.
    wide = ["harness.max_context_tokens=131072", "sampler.context_tokens=131072", "trainer.micro_batch_tokens=131072"]
    load(CONFIGS / "t1-122b.yaml", [*wide, override, "evaluation.profile=miniature"])
    with pytest.raises(ConfigError) as refused:
        load(CONFIGS / "t1-122b.yaml", [*wide, override, f"evaluation.profile={profile}"])
    assert f"evaluation.profile {profile}, with its own limits in force: harness: " in str(refused.value)
    assert problem in str(refused.value)
