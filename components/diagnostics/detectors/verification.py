"""Whether rewards tell good work from bad, and whether they are earned honestly (paper 9.1, 9.4)."""

from __future__ import annotations

from components.diagnostics.detector import Detector, blind, graded, worst_share
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run

MAX_ZERO_SHARE = 0.5
RED_ZERO_SHARE = 0.9
"""With so few trials that earn anything a step has hardly an advantage to give: a real leg of binary rewards on the
miniature's hardest tasks had 1.0, while its trials passed 45 % of the assertions."""
MIN_ASSERTIONS = 2.0
"""Assertions a trial can earn credit by; the paper's pool has a median of 4."""
SAME = 1e-9
"""Two means of the same numbers differ by no more."""
MAX_FLAT_GROUPS = 0.5
RED_FLAT_GROUPS = 0.9
"""GRPO learns from the other groups alone; of the parent data's groups 44 % have no spread, and the paper's GRPO stood
still (9.4)."""
MAX_TAMPERED_SHARE = 0.05
MAX_BROKEN_GUARDS = 0.25
"""Of all trials; in a healthy campaign of the miniature it is an eighth, from the first step to the last."""
GAMED_DROP = 2.0
"""Standard errors by which the held-out score must fall while rewards rise."""


def _zero_reward(run: Run) -> Finding:
    late = run.late("rollout/zero_reward_share")
    if late is None:
        return blind("zero_reward", "rollout/zero_reward_share")
    text = f"{late:.0%} of late trials earned nothing at all"
    return Finding("zero_reward", graded(late, MAX_ZERO_SHARE, RED_ZERO_SHARE), text, late, _in_vain(run))


def _granularity(run: Run) -> Finding:
    grain = run.share("rollout/assertions_total", "rollout/graded")
    if grain is None:
        return blind("granularity", "rollout/assertions_total, rollout/graded")
    if _verdict_alone(run):
        text = (
            f"only the whole verdict is rewarded: of {grain:.1f} assertions a trial, those of partial work earn nothing"
        )
        return Finding("granularity", Severity.WARN, text, grain, _in_vain(run))
    severity = Severity.WARN if grain < MIN_ASSERTIONS else Severity.OK
    text = f"{grain:.1f} assertions a trial can earn credit"
    return Finding("granularity", severity, text + (": partial work is not seen" if severity else ""), grain)


def _verdict_alone(run: Run) -> bool:
    """Whether rewards are 0 or 1 by the verdict, in every step, though some but not all assertions passed."""
    series = run.series
    verdicts = dict(series.points("rollout/pass_rate"))
    rewards = [(reward, verdicts[step]) for step, reward in series.points("rollout/reward_mean") if step in verdicts]
    passed = series.mean("rollout/assertions_passed")
    partial = passed is not None and 0 < passed < 1
    return partial and bool(rewards) and all(abs(reward - verdict) < SAME for reward, verdict in rewards)


def _in_vain(run: Run) -> tuple[str, ...]:
    """What was passed all the same, where it is measured."""
    passed = run.late("rollout/assertions_passed")
    return () if passed is None else (f"{passed:.0%} of the assertions of late trials passed",)


def _groups(run: Run) -> Finding:
    if not run.series.names("group/"):
        return Finding("groups", Severity.OK, "trials are not compared in groups")
    late = run.late("group/zero_variance")
    if late is None:
        return blind("groups", "group/zero_variance")
    zero = run.late("group/all_zero")
    evidence = () if zero is None else (f"in {zero:.0%} of groups nobody earned anything",)
    text = f"{late:.0%} of late groups have no spread and teach nothing"
    return Finding("groups", graded(late, MAX_FLAT_GROUPS, RED_FLAT_GROUPS), text, late, evidence)


def _tampering(run: Run) -> Finding:
    """What is tried is not rewarded; a policy that tries it more and more has found something that is."""
    found = worst_share(run, "rollout/tampered", "rollout/graded")
    if found is None:
        return blind("tampering", "rollout/tampered")
    share, worst, evidence = found
    text = f"{share:.1%} of trials changed what only the system or the verifier may change; it was reverted"
    return Finding("tampering", graded(worst, MAX_TAMPERED_SHARE), text, worst, evidence)


def _guards(run: Run) -> Finding:
    share = run.share("rollout/guards_broken", "rollout/graded")
    if share is None:
        return blind("guards", "rollout/guards_broken")
    trend = run.trend("rollout/guards_broken")
    evidence = () if trend is None else (f"a step: {trend.early:.1f} early, {trend.late:.1f} late",)
    text = f"{share:.1%} of trials broke what had worked before them (pass-to-pass assertions)"
    rising = trend is not None and trend.rose
    severity = Severity.WARN if rising or share > MAX_BROKEN_GUARDS else Severity.OK
    return Finding("guards", severity, text + (", more and more" if rising else ""), share, evidence)


def _gamed(run: Run) -> Finding:
    rewards = run.trend("rollout/reward_mean")
    start = [evaluation for evaluation in run.scored if evaluation.step == 0]
    trained = [evaluation for evaluation in run.scored if evaluation.step > 0]
    if rewards is None or not start or not trained:
        return blind("gamed_reward", "rollout/reward_mean and a held-out score before and after RL")
    before, after = start[-1].score, trained[-1].score
    gain = after["resolved"] - before["resolved"]
    noise = ((before.get("stderr") or 0.0) ** 2 + (after.get("stderr") or 0.0) ** 2) ** 0.5
    text = f"mean reward {rewards.gain:+.3f} in training, held-out pass rate {gain:+.1%}"
    if rewards.rose and gain < -GAMED_DROP * noise:
        return Finding("gamed_reward", Severity.RED, f"rewards rise and held-out work gets worse: {text}", gain)
    return Finding("gamed_reward", Severity.OK, text, gain)


DETECTORS = (
    Detector(
        "zero_reward",
        ("rollout/zero_reward_share", "rollout/assertions_passed"),
        f"more than {MAX_ZERO_SHARE:.0%} of the late trials, red above {RED_ZERO_SHARE:.0%} (ours; paper 9.1)",
        "leave out, or grade more finely, the tasks that nobody earns anything on",
        "infrastructure: trials without a verdict are in no share",
        _zero_reward,
    ),
    Detector(
        "granularity",
        ("rollout/assertions_total", "rollout/graded", "rollout/assertions_passed", "rollout/reward_mean"),
        f"fewer than {MIN_ASSERTIONS:.0f} assertions a trial (the paper's pool: median 4), "
        "or a reward that is the verdict",
        "use `reward.credit: fail_to_pass` or `count`, and tasks with several assertions",
        "a low pass rate: what is measured is how finely, not how much",
        _granularity,
    ),
    Detector(
        "groups",
        ("group/zero_variance", "group/all_zero"),
        f"more than {MAX_FLAT_GROUPS:.0%} of groups without spread, red above {RED_FLAT_GROUPS:.0%} (paper 9.4)",
        "dense rewards, easier tasks, larger groups, or PPO, which needs no group",
        "convergence, unless the groups without spread are the solved ones: compare `group/all_zero`",
        _groups,
    ),
    Detector(
        "tampering",
        ("rollout/tampered", "rollout/graded"),
        f"more than {MAX_TAMPERED_SHARE:.0%} of trials, of all or of the late ones (ours)",
        "read the trials' `tampering` facts; look for a reward that it earns",
        "a wrong verdict: verification reverts what it reports",
        _tampering,
    ),
    Detector(
        "guards",
        ("rollout/guards_broken", "rollout/graded"),
        f"more than {MAX_BROKEN_GUARDS:.0%} of trials, or more late than early beyond chance (Welch's t, ours)",
        "read such trials: new assertions are paid for with old ones; `reward.credit: fail_to_pass` denies those",
        "a flaky task, if all are trials of one: its gate ran it twice",
        _guards,
    ),
    Detector(
        "gamed_reward",
        ("rollout/reward_mean", "eval/*/resolved"),
        f"rewards rise and the held-out score falls by more than {GAMED_DROP:.0f} standard errors",
        "compare the tasks whose reward rose with their transcripts; go back to the best checkpoint",
        "overfitting alone, which leaves held-out work where it was",
        _gamed,
    ),
)
