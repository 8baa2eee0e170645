"""Whether the critic explains returns, and whether the policy learns where it does (paper 9.1)."""

from __future__ import annotations

from statistics import median_high

from components.diagnostics.detector import Detector, blind
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import LIKELY, MIN_TREND, Run

EXPLAINED = "critic/explained_variance"
MAX_NEGATIVE_STEPS = 1 / 3
RED_NEGATIVE_STEPS = 1 / 2
"""The paper's cold critic was negative in 30 of 58 steps, its warm one never; the miniature's in 10 of 48."""
DEFICIT_LEFT = 1 / 3
"""A cold critic that is worse than a constant by no more than this of what it was at first, by the median there, is on
its way, and a pause would not help it. After a leg of 12 steps, of which 8 to 11 were negative, ten campaigns of the
miniature had at most 17 % of their early mean left; after 18 all of them explained more than a constant."""
CALIBRATED = 0.5
"""From here on a critic explains the returns: the paper's warm one had 0.71 to 0.86."""
USEFUL = 0.002
"""A rise of the mean reward a step that is worth a run; a policy is flat where a rise so steep can be ruled out."""
SOLVED = 0.9
"""A pass rate with which a policy may be flat because there is little left to learn."""


def _critic(run: Run) -> Finding:
    values = run.series.values(EXPLAINED)
    late = run.late(EXPLAINED)
    if late is None:
        return blind("critic", EXPLAINED)
    negative = sum(value < 0 for value in values)
    share = negative / len(values)
    evidence = (f"explained variance was negative in {negative} of {len(values)} steps, least {min(values):.2f}",)
    if late < 0:
        early = median_high(run.series.early(EXPLAINED))  # One step may be worse than all others by any factor.
        if len(values) >= MIN_TREND and late >= DEFICIT_LEFT * early:
            text = f"the critic began cold and climbs (EV {early:.2f} early, {late:.2f} late)"
            return Finding("critic", Severity.WARN, text, late, evidence)
        severity = Severity.RED if share > RED_NEGATIVE_STEPS and len(values) >= MIN_TREND else Severity.WARN
        text = f"the critic is worse than a constant late in the run (EV {late:.2f})"
        return Finding("critic", severity, text, late, evidence)
    if share > MAX_NEGATIVE_STEPS and len(values) >= MIN_TREND:
        text = f"the critic began cold: worse than a constant in {negative} of {len(values)} steps"
        return Finding("critic", Severity.WARN, text, share, evidence)
    return Finding("critic", Severity.OK, f"late explained variance {late:.2f}", late, evidence)


def _critic_without_policy(run: Run) -> Finding:
    name = "critic_without_policy"
    late, reward = run.late(EXPLAINED), run.trend("rollout/reward_mean")
    if late is None or reward is None:
        return blind(name, f"{EXPLAINED} and rollout/reward_mean over at least {MIN_TREND} steps")
    passed = run.late("rollout/pass_rate")
    flat = abs(reward.gain) + reward.bound(LIKELY) < USEFUL * reward.steps
    if late < CALIBRATED or not flat or (passed is not None and passed >= SOLVED):
        return Finding(name, Severity.OK, f"EV {late:.2f}, mean reward {reward.gain:+.3f}", reward.gain)
    text = f"the critic is calibrated (EV {late:.2f}) and the policy is flat (mean reward {reward.gain:+.3f})"
    return Finding(name, Severity.RED, text, reward.gain, _causes(run))


def _causes(run: Run) -> tuple[str, ...]:
    """What leaves a calibrated critic without an advantage to give."""
    found = []
    if (zero := run.late("rollout/zero_reward_share")) is not None:
        found.append(f"{zero:.0%} of late trials earned nothing at all")
    if (grain := run.share("rollout/assertions_total", "rollout/graded")) is not None:
        found.append(f"{grain:.1f} assertions a trial can earn credit")
    if (spread := run.late("ppo/adv_std")) is not None:
        found.append(f"late advantages have a deviation of {spread:.3g}")
    return tuple(found)


DETECTORS = (
    Detector(
        "critic",
        (EXPLAINED,),
        f"late mean below 0, or negative in more than {MAX_NEGATIVE_STEPS:.0%} of steps (paper 4.5: 30 of 58 cold); "
        f"red when it is more than {DEFICIT_LEFT:.0%} of the early median and over half of at least "
        f"{MIN_TREND} steps were negative (ours)",
        "warm the critic up (`ppo.critic.warmup`), give it its own steps (`ppo.critic.only_steps`), or a higher rate",
        "a reason to distrust rewards: they do not pass through the critic",
        _critic,
    ),
    Detector(
        "critic_without_policy",
        (EXPLAINED, "rollout/reward_mean", "rollout/pass_rate", "rollout/zero_reward_share"),
        f"EV from {CALIBRATED} on, a rise of the reward by {USEFUL} a step ruled out at {LIKELY:.1%} (ours), pass rate "
        f"below {SOLVED:.0%} (paper 9.1)",
        "change the tasks, not the critic: leave out those that nobody earns anything on, and grade by more assertions",
        "a critic that fails: it predicts well that nothing will change",
        _critic_without_policy,
    ),
)
