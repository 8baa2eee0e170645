"""What the scheduler costs: classes that its tail rule starves, sides that wait (paper 9.3, Eq 22)."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from components.diagnostics.detector import Detector, blind
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import LIKELY, Run, share_of, standard_error

GAPS = "rollout/share_gap/"
MAX_SHARE_GAP = 0.02
"""Two points of a class's share; the paper's tail rule costs hard tasks six."""
MIN_STEPS = 3
"""Gaps of fewer are no measure of their own spread."""
MIN_CANCELLED = 20
"""Fewer cancelled trials than this say nothing about classes."""
MAX_WAIT_SHARE = 0.5
"""Share of a step in which the trainer waits for its next batch."""
MIN_OVERLAP = 1.25
"""Generation and update that differ by less than this factor are balanced."""


def _beyond_chance(gaps: Sequence[float], mean: float, classes: int) -> bool:
    """Among so many classes the largest gap is easily a rare one's, and few steps tell little of their own spread: with
    three standard errors every fourth unbiased leg of five steps had a starved class.
    """
    if len(gaps) < MIN_STEPS:
        return False
    noise = float(stats.t.ppf(1 - (1 - LIKELY) / classes, len(gaps) - 1)) * standard_error(gaps)
    return mean < -MAX_SHARE_GAP and mean < -noise


def _cancellation(run: Run) -> Finding:
    series = run.series
    cancelled = series.total("rollout/cancelled")
    gaps = {name.removeprefix(GAPS): series.mean(name) for name in series.names(GAPS)}
    measured = {name: gap for name, gap in gaps.items() if gap is not None}
    if cancelled is None or not measured:
        return blind("cancellation", "rollout/share_gap")
    told = {
        name: gap
        for name, gap in measured.items()
        if _beyond_chance(series.values(f"{GAPS}{name}"), gap, len(measured))
    }
    name, gap = min((told or measured).items(), key=lambda item: item[1])
    launched = series.total("rollout/launched")
    evidence = () if not launched else (f"{cancelled:.0f} of {launched:.0f} launched trials were cancelled",)
    if cancelled >= MIN_CANCELLED and told:
        text = f"cutting the tail starves {name}: trained share {-gap:.1%} below submitted"
        return Finding("cancellation", Severity.WARN, text, gap, evidence)
    text = f"{cancelled:.0f} trials cancelled, no class lost more of its share than by chance ({name}: {gap:+.1%})"
    return Finding("cancellation", Severity.OK, text, gap, evidence)


def _balance(run: Run) -> Finding:
    generate, train = run.late("time/generate"), run.late("time/train")
    waited = share_of(run.late("time/barrier_wait"), run.late("time/step"))
    if generate is None or not train or waited is None:
        return blind("balance", "time/generate, time/train, time/barrier_wait")
    ratio = generate / train
    text = f"generation takes {ratio:.2f} × the update, the trainer waits in {waited:.0%} of a step"
    evidence: tuple[str, ...] = ()
    if max(ratio, 1 / ratio) > MIN_OVERLAP:
        evidence = (f"balanced with {ratio:.2f} × the samplers to a trainer there are now (Eq 22, R/n = C/(G-n))",)
    return Finding("balance", Severity.WARN if waited > MAX_WAIT_SHARE else Severity.OK, text, waited, evidence)


DETECTORS = (
    Detector(
        "cancellation",
        ("rollout/cancelled", "rollout/share_gap/*"),
        f"a class trained {MAX_SHARE_GAP:.0%} below its submitted share, at {LIKELY:.1%} beyond chance among all "
        f"classes, {MIN_CANCELLED} or more cancelled (paper 9.3)",
        "`rollout.tail: carry`, or `retry`; a larger over-launch makes it worse",
        "hard tasks failing: what was cancelled was never graded",
        _cancellation,
    ),
    Detector(
        "balance",
        ("time/generate", "time/train", "time/barrier_wait", "time/step"),
        f"the trainer waits in more than {MAX_WAIT_SHARE:.0%} of a step (ours); the split is Eq 22's",
        "move devices to the side that is waited for: `python -m components.planner` has the arithmetic",
        "a slow machine: only the ratio of both sides counts",
        _balance,
    ),
)
