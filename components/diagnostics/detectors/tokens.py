"""Whether what is trained is what was sampled: tokens, their context, and the experts that were recorded."""

from __future__ import annotations

from components.diagnostics.detector import Detector, blind, graded
from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run

MAX_PLACEHOLDERS = 3e-5
"""Share of routing rows that had to be filled; the paper's run had at most 0.003 %."""
RED_PLACEHOLDERS = 1e-3


def _drift(run: Run) -> Finding:
    values = run.series.values("tito/drift")
    if not values:
        return blind("drift", "tito/drift")
    worst = max(values)
    if worst > 0:
        return Finding("drift", Severity.RED, f"trained tokens are not the sampled ones (drift {worst:.2%})", worst)
    rejected = run.series.total("rollout/rejected") or 0.0
    if rejected:
        text = f"{rejected:.0f} trials were rejected: what was recorded of them is not what was sampled"
        return Finding("drift", Severity.WARN, text, rejected)
    return Finding("drift", Severity.OK, "every trained token is the sampled one", 0.0)


def _reencoded(run: Run) -> Finding:
    values = run.series.values("tito/reencoded_context")
    if not values:
        return blind("reencoded_context", "tito/reencoded_context")
    worst = max(values)
    return Finding("reencoded_context", graded(worst, 0), f"at most {worst:.2%} of the context was re-encoded", worst)


def _placeholders(run: Run) -> Finding:
    values = run.series.values("r3/placeholder_rows")
    if not values:
        return blind("placeholder_rows", "r3/placeholder_rows")
    worst = max(values)
    text = f"at most {worst:.4%} of routing rows were filled in"
    return Finding("placeholder_rows", graded(worst, MAX_PLACEHOLDERS, RED_PLACEHOLDERS), text, worst)


DETECTORS = (
    Detector(
        "drift",
        ("tito/drift", "rollout/rejected"),
        "more than none (paper: 0.0000 % over 1,402 samples)",
        "stop the leg; `tito/retokenized` and rejected trials' causes: the template or the tokenizer changed",
        "the gap between engines, which equal tokens have too",
        _drift,
    ),
    Detector(
        "reencoded_context",
        ("tito/reencoded_context",),
        "more than none: append-only histories re-encode nothing (paper 10: 2.6 % where an agent re-renders them)",
        "let the agent speak through the gateway's token history; its rewrites are chunks of their own",
        "drift of what is trained: the loss region may be exact and its context not",
        _reencoded,
    ),
    Detector(
        "placeholder_rows",
        ("r3/placeholder_rows",),
        f"{MAX_PLACEHOLDERS:.3%} (paper 10), red above {RED_PLACEHOLDERS:.1%}",
        "look at aborted and continued answers: their captures have holes",
        "lost trials: a row may only be filled where the next token is not trained (Eq 14)",
        _placeholders,
    ),
)
