"""A campaign's configuration and tasks under the profile of an evaluation.

Invariant: what a profile says holds, and what it leaves out is the campaign's; nothing else of the configuration
changes, so that a checkpoint is evaluated by the very loop that trained it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from components.config import CampaignConfig, EvaluationConfig, HarnessConfig, RolloutConfig
from components.pool import Task
from components.records import Sampling

T = TypeVar("T", HarnessConfig, RolloutConfig)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a number was measured under; stands beside every one.

    Attributes:
        suite: which tasks.
        profile: the name of the profile, whose limits are in force where it says them.
        harness: who ran the trials, with its version where it has one of its own.
        attempts: at each task.
        sampling, limits: what was in force.
    """

    suite: str
    profile: str
    harness: str
    attempts: int
    sampling: Sampling
    limits: dict[str, Any]

    @property
    def series(self) -> str:
        """The prefix of its series in MLflow, after `eval/`."""
        return f"{self.suite}.{self.profile}.{self.harness.partition(' ')[0]}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"thinking": False}


def conditions_of(config: CampaignConfig, suite: str, harness: str) -> Conditions:
    """What `config`, which is under its profile already, lets trials of `suite` have."""
    harness_limits, walls = config.harness, config.evaluation.conditions.walls
    return Conditions(
        suite=suite,
        profile=config.evaluation.profile,
        harness=harness,
        attempts=config.evaluation.conditions.attempts,
        sampling=sampling_of(config.evaluation),
        limits={
            "max_turns": harness_limits.max_turns,
            "context_tokens": harness_limits.max_context_tokens,
            "max_turn_tokens": harness_limits.max_turn_tokens,
            "compaction": harness_limits.compaction is not None,
            "agent_s": config.rollout.agent_timeout_s,
            "verifier_s": config.rollout.verifier_timeout_s,
            "total_s": config.rollout.remote_timeout_s,
            "uniform": walls is not None and walls.uniform,
        },
    )


def sampling_of(config: EvaluationConfig) -> Sampling:
    """How every answer of an evaluation is drawn."""
    profile = config.conditions
    return Sampling(profile.temperature, profile.top_p, profile.top_k)


def under_profile(config: CampaignConfig) -> CampaignConfig:
    """`config` with the limits of its evaluation's profile in force.

    Raises:
        pydantic.ValidationError: they do not go with each other. Validating the whole configuration has seen to that.
    """
    profile = config.evaluation.conditions
    rollout: dict[str, Any] = {}
    if (walls := profile.walls) is not None:
        rollout = {
            "agent_timeout_s": walls.agent_s,
            "verifier_timeout_s": walls.verifier_s,
            "remote_timeout_s": walls.total_s,
        }
    sandbox = config.sandbox
    if profile.disk_mb is not None:
        sandbox = sandbox.model_copy(update={"disk_mb": profile.disk_mb})
    changed = {
        "harness": _changed(config.harness, profile.harness_limits),
        "rollout": _changed(config.rollout, rollout),
        "sandbox": sandbox,
    }
    return config.model_copy(update=changed)


def walled(task: Task, config: EvaluationConfig) -> Task:
    """The task with the deadlines of the profile, where those are the same for every task."""
    walls = config.conditions.walls
    if walls is None or not walls.uniform:
        return task
    manifest = replace(task.manifest, agent_timeout_s=walls.agent_s, verifier_timeout_s=walls.verifier_s)
    return replace(task, manifest=manifest)


def _changed(section: T, changes: Mapping[str, Any]) -> T:
    return type(section).model_validate({**section.model_dump(), **changes})
