"""What a detector is: what it looks at, from which number on it speaks, what to do then, and what it does not mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run, share_of


@dataclass(frozen=True, slots=True)
class Detector:
    """One failure that is found in a run's own numbers.

    Attributes:
        name: of its findings, and in the table of docs/diagnosis.md.
        looks_at: the series it reads, as in MLflow; `prefix/*` for all that begin so.
        threshold: from which number on it speaks, and where that number comes from.
        action: what the person on call should do when it does.
        is_not: what its finding is easily taken for, and is not.
        find: the finding in a run.
    """

    name: str
    looks_at: tuple[str, ...]
    threshold: str
    action: str
    is_not: str
    find: Callable[[Run], Finding]


def blind(name: str, series: str) -> Finding:
    """The finding of a detector that has nothing to look at."""
    return Finding(name, Severity.BLIND, f"not measured: {series}")


def worst_share(run: Run, part: str, whole: str) -> tuple[float, float, tuple[str, ...]] | None:
    """The share of one count in another: of the whole run, and the larger of that and the last third's.

    With a sentence on the latter where it is the larger. None where it was not measured.
    """
    share = run.share(part, whole)
    if share is None:
        return None
    late = run.late_counts(part, whole)
    late_share = share_of(*late) if late is not None else None
    if late_share is None or late_share <= share:
        return share, share, ()
    return share, late_share, (f"{late_share:.1%} in the last third of the steps",)


def graded(value: float, warn: float, red: float | None = None) -> Severity:
    """WARN above `warn`, RED above `red`."""
    if red is not None and value > red:
        return Severity.RED
    return Severity.WARN if value > warn else Severity.OK
