"""Whether checkpoints get better on tasks that are not trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from components.diagnostics.detector import Detector, blind
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run

SIGNIFICANT = 2.0
"""Standard errors of a difference of two scores."""


def _heldout(run: Run) -> Finding:
    before = [evaluation for evaluation in run.scored if evaluation.step == 0]
    after = [evaluation for evaluation in run.scored if evaluation.step > 0]
    if not before or not after:
        return blind("heldout", "a held-out score before and after RL")
    start, end = before[-1], after[-1]
    gain = end.score["resolved"] - start.score["resolved"]
    noise = _noise(start.score, end.score)
    text = f"held-out pass rate {start.score['resolved']:.1%} ({start.name}) → {end.score['resolved']:.1%} ({end.name})"
    if gain < -SIGNIFICANT * noise:
        return Finding("heldout", Severity.RED, text + ": RL made it worse", gain)
    if gain <= SIGNIFICANT * noise:
        return Finding("heldout", Severity.WARN, text + ": within twice the standard error", gain)
    return Finding("heldout", Severity.OK, text, gain)


def _regression(run: Run) -> Finding:
    scored = [evaluation for evaluation in run.scored if evaluation.step > 0]
    if len(scored) < 2:
        return blind("regression", "two held-out scores of RL's checkpoints")
    last, best = scored[-1], max(scored, key=lambda evaluation: evaluation.score["resolved"])
    loss = best.score["resolved"] - last.score["resolved"]
    text = f"{last.name} has {last.score['resolved']:.1%}, the best, {best.name}, {best.score['resolved']:.1%}"
    severity = Severity.WARN if loss > SIGNIFICANT * _noise(best.score, last.score) else Severity.OK
    return Finding("regression", severity, text + (": it got worse" if severity else ""), -loss)


def _noise(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    return math.hypot(one.get("stderr") or 0.0, other.get("stderr") or 0.0)


DETECTORS = (
    Detector(
        "heldout",
        ("eval/*/resolved", "eval/*/stderr"),
        f"the last checkpoint against the one before RL, {SIGNIFICANT:.0f} standard errors",
        "worse: stop and go back to `best`. No difference: evaluate on more tasks before deciding",
        "a verdict on single tasks: `python -m components.evaluation` pairs them",
        _heldout,
    ),
    Detector(
        "regression",
        ("eval/*/resolved", "eval/*/stderr"),
        f"the last checkpoint against the best, {SIGNIFICANT:.0f} standard errors",
        "continue from `best`, with a lower rate; compare both task by task",
        "noise of a small evaluation: the standard error is in it",
        _regression,
    ),
)
