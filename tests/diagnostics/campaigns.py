"""Synthetic campaigns: five healthy ones, and one for each failure that a detector is to find.

A campaign is a healthy one whose series are overridden: by a value, a function of the step, or None (not measured).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from components.diagnostics import Evaluation

Value = float | None | Callable[[int], float]

STEPS = 24
HEALTHY: Mapping[str, Value] = {
    "tito/drift": 0.0,
    "tito/reencoded_context": 0.0,
    "r3/placeholder_rows": 0.0,
    "critic/explained_variance": lambda step: min(0.85, -0.4 + 0.1 * step),
    "rollout/launched": 70.0,
    "rollout/infra_faults": 0.0,
    "rollout/cancelled": 6.0,
    "rollout/graded": 64.0,
    "rollout/share_gap/difficulty.hard": -0.001,
    "rollout/share_gap/difficulty.easy": 0.001,
    "rollout/reward_mean": lambda step: 0.1 + 0.01 * step + 0.005 * (step % 3),
    "rollout/pass_rate": lambda step: 0.2 + 0.02 * step,
    "rollout/assertions_total": 400.0,
    "rollout/assertions_passed": lambda step: 0.5 + 0.01 * step,
    "rollout/zero_reward_share": 0.1,
    "rollout/guards_broken": lambda step: 8.0 + step % 3,
    "rollout/repeated_share": 0.03,
    "rollout/turns_mean": lambda step: 4.0 + 0.05 * step,
    "rollout/tampered": 0.0,
    "rollout/compactions_attempted": 10.0,
    "rollout/compactions_succeeded": 9.0,
    "gap/engine_token_mean": 0.0001,
    "gap/policy_token_mean": 0.002,
    "gap/frac_gt_ln2": 0.0,
    "ppo/approx_kl": 1e-4,
    "ppo/clip_frac": 0.01,
    "ppo/entropy": lambda step: 0.5 - 0.01 * step,
    "ppo/adv_std": 0.1,
    "stop/token_limit": 1.0,
    "time/generate": 3.0,
    "time/train": 2.8,
    "time/barrier_wait": 0.3,
    "time/step": 3.2,
}


def records(series: Mapping[str, Value] = {}, steps: int = STEPS) -> list[dict[str, Any]]:
    """Committed steps, a minute each."""
    merged = {**HEALTHY, **series}
    return [
        {
            "step": step,
            "timestamp_ms": 60_000 * step,
            "metrics": {
                name: value(step) if callable(value) else value for name, value in merged.items() if value is not None
            },
        }
        for step in range(steps)
    ]


def score(name: str, step: int, resolved: float, stderr: float = 0.03) -> Evaluation:
    return Evaluation(name, step, {"resolved": resolved, "stderr": stderr})


RISING = (score("base", 0, 0.15), score("sft", 0, 0.3), score("leg-1", 12, 0.6), score("leg-2", 24, 0.8))


@dataclass(frozen=True)
class Campaign:
    """What a synthetic campaign measured.

    Attributes:
        series: what differs from `HEALTHY`.
        evaluations: its held-out scores.
        steps: how many it has.
        now_ms: the clock, for one that still runs.
        gone: steps without a record.
    """

    series: Mapping[str, Value] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = RISING
    steps: int = STEPS
    now_ms: int | None = None
    gone: tuple[int, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        return [record for record in records(self.series, self.steps) if record["step"] not in self.gone]


FLAT: Mapping[str, Value] = {
    "critic/explained_variance": 0.2,
    "rollout/reward_mean": lambda step: 0.2 + 0.005 * (step % 2),
    "rollout/pass_rate": lambda step: 0.3 + 0.01 * (step % 2),
    "rollout/assertions_passed": lambda step: 0.5 + 0.01 * (step % 2),
}
NOT_MOVED = (score("sft", 0, 0.3), score("leg-1", 12, 0.31), score("leg-2", 24, 0.3))

YOUNG = (0.0, -3.95, -1.19, -1.18, -0.71, -0.89, -0.31, -0.25, -0.23, -0.13, -0.01, -0.04)
"""Explained variance in the first leg of a newcomer's campaign, which went from .25 to .88 in four."""

SOUND: Mapping[str, Campaign] = {
    "ppo that learns": Campaign(),
    "a cold critic that warms up early, as the miniature's": Campaign(
        {"critic/explained_variance": lambda step: -3.7 if step < 5 else min(0.7, 0.1 * step - 0.3)}
    ),
    "turns that double and pay": Campaign({"rollout/turns_mean": lambda step: 4.0 + 0.4 * step}),
    "solved, hence flat, certain and without spread": Campaign(
        {
            "rollout/reward_mean": lambda step: 0.35 + 0.005 * (step % 2),
            "rollout/pass_rate": 0.97,
            "ppo/entropy": lambda step: 0.2 * 0.7**step,
            "critic/explained_variance": 0.6,
            "rollout/zero_reward_share": 0.0,
        },
        (score("sft", 0, 0.6), score("leg-1", 12, 0.95), score("leg-2", 24, 0.97)),
    ),
    "grpo without a critic": Campaign(
        {
            "critic/explained_variance": None,
            "group/count": 16.0,
            "group/zero_variance": 0.3,
            "group/all_zero": 0.1,
        }
    ),
}

PLANTED: Mapping[str, tuple[str, Campaign]] = {
    "tokens that were not sampled": ("drift", Campaign({"tito/drift": lambda step: 0.001 * (step == 4)})),
    "placeholder rows": ("placeholder_rows", Campaign({"r3/placeholder_rows": 0.01})),
    "samplers with old weights": ("far_tokens", Campaign({"gap/frac_gt_ln2": 0.2})),
    "a critic that never warms": ("critic", Campaign({"critic/explained_variance": lambda step: -20.0 + 0.5 * step})),
    "a critic that stays a little worse than a constant": (
        "critic",
        Campaign({"critic/explained_variance": lambda step: -0.3 - 0.2 * (step % 2)}),
    ),
    "a critic that stays worse than a constant after one step that was far worse": (
        "critic",
        Campaign({"critic/explained_variance": lambda step: -100.0 if step == 0 else -1.0}),
    ),
    "the same in a short leg": (
        "critic",
        Campaign({"critic/explained_variance": lambda step: -100.0 if step == 1 else -1.0}, RISING[:3], 6),
    ),
    "a critic that explains a policy that stands": (
        "critic_without_policy",
        Campaign({**FLAT, "critic/explained_variance": 0.8, "rollout/zero_reward_share": 0.7}, NOT_MOVED),
    ),
    "a reward that falls": ("reward", Campaign({"rollout/reward_mean": lambda step: 0.4 - 0.01 * step})),
    "updates that are too large": ("step_size", Campaign({"ppo/approx_kl": 0.5, "ppo/clip_frac": 0.6})),
    "an optimizer that does nothing": ("step_size", Campaign({**FLAT, "ppo/approx_kl": 0.0}, NOT_MOVED)),
    "one action takes over": ("entropy", Campaign({**FLAT, "ppo/entropy": lambda step: 0.5 * 0.6**step}, NOT_MOVED)),
    "groups that are all alike": ("groups", Campaign({"group/count": 16.0, "group/zero_variance": 0.95})),
    "binary rewards on tasks that are too hard": (
        "zero_reward",
        Campaign(
            {
                "rollout/zero_reward_share": 1.0,
                "rollout/reward_mean": 0.0,
                "rollout/pass_rate": 0.0,
                "rollout/assertions_passed": 0.45,
                "critic/explained_variance": None,
            },
            NOT_MOVED,
        ),
    ),
    "rewards that are not earned": (
        "gamed_reward",
        Campaign(
            evaluations=(score("base", 0, 0.02), score("sft", 0, 0.5), score("leg-1", 12, 0.4), score("leg-2", 24, 0.2))
        ),
    ),
    "summaries that do not fit": ("compactions", Campaign({"rollout/compactions_succeeded": 0.2})),
    "turns that explode": (
        "turns",
        Campaign({**FLAT, "rollout/turns_mean": lambda step: 4.0 + step, "rollout/repeated_share": 0.4}, NOT_MOVED),
    ),
    "a cloud that fails": ("infrastructure", Campaign({"rollout/infra_faults": 20.0, "fault/sandbox": 20.0})),
    "a cloud that fails late": (
        "infrastructure",
        Campaign({"rollout/infra_faults": lambda step: 20.0 * (step >= 44)}, steps=60),
    ),
    "summaries that no longer fit": (
        "compactions",
        Campaign({"rollout/compactions_succeeded": lambda step: 10.0 if step < 50 else 0.0}, steps=60),
    ),
    "steps that were lost": ("measurements", Campaign(gone=(7, 8))),
    "the first steps were lost": ("measurements", Campaign(gone=(0, 1, 2))),
    "a leg that stands still": ("measurements", Campaign(now_ms=60_000 * (STEPS + 30))),
    "RL that unlearns": (
        "heldout",
        Campaign(evaluations=(score("base", 0, 0.02), score("sft", 0, 0.5), score("leg-2", 24, 0.2))),
    ),
}
"""Every failure that ends in red: its detector, and a campaign that has it."""

SUSPECT: Mapping[str, tuple[str, Campaign]] = {
    "records that were rejected": ("drift", Campaign({"rollout/rejected": lambda step: float(step == 4)})),
    "histories that are rendered again": ("reencoded_context", Campaign({"tito/reencoded_context": 0.026})),
    "a few placeholder rows": ("placeholder_rows", Campaign({"r3/placeholder_rows": 1e-4})),
    "an engine that drifts away": (
        "engine_gap",
        Campaign({"gap/engine_token_mean": lambda step: 0.0002 * 1.2**step}),
    ),
    "an engine gap of before R3": ("engine_gap", Campaign({"gap/engine_token_mean": 0.05})),
    "a young critic, as the miniature's after a leg": (
        "critic",
        Campaign({"critic/explained_variance": lambda step: YOUNG[step]}, RISING[:3], len(YOUNG)),
    ),
    "a critic that began cold": (
        "critic",
        Campaign({"critic/explained_variance": lambda step: -20.0 if step < 13 else 0.3}),
    ),
    "a policy that stands": ("reward", Campaign(FLAT, NOT_MOVED)),
    "tasks that nobody earns anything on": ("zero_reward", Campaign({"rollout/zero_reward_share": 0.6})),
    "one assertion a task": ("granularity", Campaign({"rollout/assertions_total": 64.0})),
    "partial work that earns nothing": (
        "granularity",
        Campaign({"rollout/reward_mean": lambda step: 0.2 + 0.02 * step}),
    ),
    "most groups are alike": ("groups", Campaign({"group/count": 16.0, "group/zero_variance": 0.6})),
    "work against the verifier": ("tampering", Campaign({"rollout/tampered": 10.0})),
    "work against the verifier that is learned late": (
        "tampering",
        Campaign({"rollout/tampered": lambda step: 6.0 * (step >= 42)}, steps=60),
    ),
    "walls that are met late": (
        "token_wall",
        Campaign({"stop/token_limit": lambda step: 1.0 if step < 50 else 60.0}, steps=60),
    ),
    "old work is broken for new, more and more": (
        "guards",
        Campaign({"rollout/guards_broken": lambda step: 2.0 + step / 4}),
    ),
    "old work is broken in many trials": ("guards", Campaign({"rollout/guards_broken": 20.0})),
    "walls": ("token_wall", Campaign({"stop/token_limit": 30.0})),
    "the same again": ("repeated_commands", Campaign({"rollout/repeated_share": 0.4})),
    "a tail rule that starves the hard": (
        "cancellation",
        Campaign({"rollout/share_gap/difficulty.hard": -0.06}),
    ),
    "a trainer that waits": ("balance", Campaign({"time/generate": 9.0, "time/barrier_wait": 6.2, "time/step": 9.0})),
    "some faults": ("infrastructure", Campaign({"rollout/infra_faults": 5.0})),
    "a series that is missing": ("measurements", Campaign({"time/step": None})),
    "no gain that could be told": ("heldout", Campaign(evaluations=NOT_MOVED)),
    "a last leg that lost": (
        "regression",
        Campaign(evaluations=(score("sft", 0, 0.3), score("leg-1", 12, 0.8), score("leg-2", 24, 0.6))),
    ),
}
"""What is worth a look and no alarm."""
