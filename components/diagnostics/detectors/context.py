"""What becomes of long trajectories (paper 9.2)."""

from __future__ import annotations

from scipy import stats

from components.diagnostics.detector import Detector, blind, graded, worst_share
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import LIKELY, MIN_TREND, SURE, Run

MAX_TOKEN_WALL_SHARE = 0.2
MAX_FAILED_COMPACTIONS = 0.2
"""Share of histories that could not be rewritten; in the paper's run 98.3 % could not, and agents did work again."""
EXPLOSION = 2.0
"""Turns, smoothed, over those of the first steps: an alarm only where nothing was won by them."""
SMOOTHING = 0.25
MAX_REPEATED = 0.2
"""Share of turns that send again what the turn before sent."""


def _token_wall(run: Run) -> Finding:
    found = worst_share(run, "stop/token_limit", "rollout/graded")
    if found is None:
        return blind("token_wall", "stop/token_limit")
    share, worst, evidence = found
    text = f"{share:.1%} of trials ran into the token wall"
    return Finding("token_wall", graded(worst, MAX_TOKEN_WALL_SHARE), text, worst, evidence)


def _compactions(run: Run) -> Finding:
    tried = run.series.total("rollout/compactions_attempted")
    done = run.series.total("rollout/compactions_succeeded")
    if tried is None or done is None:
        return blind("compactions", "rollout/compactions_attempted")
    if not tried:
        return Finding("compactions", Severity.OK, "no history had to be rewritten", 0.0)
    share, severity, evidence = 1 - done / tried, _failing(tried, done), _repeats(run)
    late = run.late_counts("rollout/compactions_succeeded", "rollout/compactions_attempted")
    if late is not None and (begun := _failing(late[1], late[0])) > severity:
        severity = begun
        told = f"{1 - late[0] / late[1]:.1%} of {late[1]:.0f} in the last third of the steps"
        evidence = (told, *evidence)
    text = f"{share:.1%} of {tried:.0f} histories could not be rewritten"
    return Finding("compactions", severity, text, share, evidence)


def _failing(tried: float, done: float) -> Severity:
    """By how sure it is that more fail than may."""
    chance = float(stats.binom.sf(tried - done - 1, tried, MAX_FAILED_COMPACTIONS))
    return Severity.RED if chance < 1 - SURE else Severity.WARN if chance < 1 - LIKELY else Severity.OK


def _turns(run: Run) -> Finding:
    values = run.series.values("rollout/turns_mean")
    if len(values) < MIN_TREND:
        return blind("turns", f"rollout/turns_mean over at least {MIN_TREND} steps")
    start = sum(values[:3]) / 3
    smoothed = values[0]
    for value in values[1:]:
        smoothed += SMOOTHING * (value - smoothed)
    growth = smoothed / start if start else 1.0
    text = f"turns {start:.1f} → {smoothed:.1f} ({growth:.1f} ×)"
    won = [trend.rose for name in ("rollout/pass_rate", "rollout/assertions_passed") if (trend := run.trend(name))]
    if growth <= EXPLOSION or any(won):
        return Finding("turns", Severity.OK, text, growth)
    return Finding("turns", Severity.RED, f"turns explode and win nothing: {text}", growth, _repeats(run))


def _repeated(run: Run) -> Finding:
    late = run.late("rollout/repeated_share")
    if late is None:
        return blind("repeated_commands", "rollout/repeated_share")
    text = f"{late:.1%} of late turns send again what the turn before sent"
    return Finding("repeated_commands", graded(late, MAX_REPEATED), text, late)


def _repeats(run: Run) -> tuple[str, ...]:
    late = run.late("rollout/repeated_share")
    return () if late is None else (f"{late:.1%} of late turns send again what the turn before sent",)


DETECTORS = (
    Detector(
        "token_wall",
        ("stop/token_limit", "rollout/graded"),
        f"more than {MAX_TOKEN_WALL_SHARE:.0%} of trials, of all or of the late ones (ours)",
        "raise `harness.max_context_tokens`, turn compaction on, or look for output that floods the history",
        "a fault: a trial that hits the wall is graded",
        _token_wall,
    ),
    Detector(
        "compactions",
        ("rollout/compactions_attempted", "rollout/compactions_succeeded", "rollout/repeated_share"),
        f"more than {MAX_FAILED_COMPACTIONS:.0%} of all or of the late ones (paper 9.2: 98.3 % failed, found late), "
        f"beyond chance at {LIKELY:.1%}; red at {SURE:.1%}",
        "give the summary a budget that fits: `proactive_threshold` must hold the answer and its prompt",
        "a long task: a summary that is written succeeds however long the history was",
        _compactions,
    ),
    Detector(
        "turns",
        ("rollout/turns_mean", "rollout/pass_rate", "rollout/assertions_passed"),
        f"smoothed turns above {EXPLOSION:.0f} × those of the first steps while neither pass rate nor assertions rise",
        "look at failed compactions and repeated commands before any length penalty (the paper's made it worse)",
        "growth that pays: the paper's turns doubled, 10.4 to 20.7, while its reward rose",
        _turns,
    ),
    Detector(
        "repeated_commands",
        ("rollout/repeated_share",),
        f"more than {MAX_REPEATED:.0%} of late turns (ours)",
        "read such trials: waiting for a program is one, not seeing its own output another",
        "a stuck terminal, which ends a trial as a sandbox fault",
        _repeated,
    ),
)
