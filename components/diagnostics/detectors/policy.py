"""Whether the policy learns, moves, and stays a distribution."""

from __future__ import annotations

from components.diagnostics.detector import Detector, blind
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import LIKELY, MIN_TREND, SURE, Run

MAX_CLIPPED = 0.3
MAX_KL = 0.1
"""A step whose policies are further apart than this, or clip more, has left the trust region that PPO assumes."""
FROZEN_KL = 1e-12
"""What rounding alone leaves of the KL of a policy that did not move."""
MIN_ENTROPY = 1e-3
ENTROPY_DROP = 0.1
"""Entropy, nats a token: late below the least, or below this share of the early one."""
SOLVED = 0.9


def _reward(run: Run) -> Finding:
    name = "rollout/reward_mean"
    trend = run.trend(name)
    if trend is None:
        return blind("reward", f"{name} over at least {MIN_TREND} steps")
    if trend.fell():
        severity = Severity.RED if trend.fell(SURE) else Severity.WARN
        return Finding("reward", severity, f"the mean reward fell by {-trend.gain:.3f}", trend.gain)
    if not trend.rose:
        solved = (run.late("rollout/pass_rate") or 0.0) >= SOLVED
        moved = f"mean reward moved by {trend.gain:+.3f}, chance alone by up to {trend.bound(LIKELY):.3f}"
        text = f"nearly everything is solved: {moved}" if solved else f"the policy is flat: {moved}"
        return Finding("reward", Severity.OK if solved else Severity.WARN, text, trend.gain)
    return Finding("reward", Severity.OK, f"the mean reward rose by {trend.gain:.3f}", trend.gain)


def _step_size(run: Run) -> Finding:
    kl, clipped = run.late("ppo/approx_kl"), run.late("ppo/clip_frac")
    if kl is None or clipped is None:
        return blind("step_size", "ppo/approx_kl, ppo/clip_frac")
    if kl > MAX_KL or clipped > MAX_CLIPPED:
        text = f"updates leave the trust region: KL {kl:.2g}, {clipped:.0%} of tokens clipped"
        return Finding("step_size", Severity.RED, text, kl)
    moved = run.series.values("ppo/approx_kl")
    if len(moved) >= MIN_TREND and max(map(abs, moved)) < FROZEN_KL:
        text = f"the policy does not move: KL at most {max(map(abs, moved)):.1g} in {len(moved)} updates"
        return Finding("step_size", Severity.RED, text, kl)
    return Finding("step_size", Severity.OK, f"late KL {kl:.2g} a step, {clipped:.1%} of tokens clipped", kl)


def _entropy(run: Run) -> Finding:
    trend = run.trend("ppo/entropy")
    if trend is None:
        return blind("entropy", f"ppo/entropy over at least {MIN_TREND} steps")
    text = f"entropy {trend.early:.3g} → {trend.late:.3g} nats a token"
    reward = run.trend("rollout/reward_mean")
    solved = (run.late("rollout/pass_rate") or 0.0) >= SOLVED
    fallen = trend.late < ENTROPY_DROP * trend.early
    if (trend.late < MIN_ENTROPY or fallen) and not solved and (reward is None or not reward.rose):
        return Finding("entropy", Severity.RED, f"the policy has collapsed: {text}, and nothing was won", trend.late)
    return Finding("entropy", Severity.OK, text, trend.late)


DETECTORS = (
    Detector(
        "reward",
        ("rollout/reward_mean",),
        f"over at least {MIN_TREND} steps, last third against first, Welch's t beyond {LIKELY:.1%}; "
        f"red beyond {SURE:.1%}",
        "look at held-out scores first; then at zero-reward shares, entropy and the step's size",
        "a held-out regression: training tasks differ from step to step",
        _reward,
    ),
    Detector(
        "step_size",
        ("ppo/approx_kl", "ppo/clip_frac"),
        f"late KL above {MAX_KL} or more than {MAX_CLIPPED:.0%} clipped; or a KL of 0 in every update",
        "too large: lower `ppo.actor.lr`. None at all: a frozen optimizer, zero advantages, unpublished weights",
        "the engine gap, which is measured at equal weights",
        _step_size,
    ),
    Detector(
        "entropy",
        ("ppo/entropy", "rollout/reward_mean"),
        f"late entropy below {MIN_ENTROPY} or below {ENTROPY_DROP:.0%} of the early one, and no rise of the reward",
        "go back to the best checkpoint, lower the actor's rate; look for one action that has taken over",
        "certainty that was earned: entropy also falls where tasks get solved",
        _entropy,
    ),
)
