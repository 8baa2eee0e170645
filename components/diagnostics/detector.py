"""What a detector is: what it looks at, from which number on it speaks, what to do then, and what it does not mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from components.diagnostics.finding import Finding, Severity
from components.diagnostics.series import Run


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


def graded(value: float, warn: float, red: float | None = None) -> Severity:
    """WARN above `warn`, RED above `red`."""
    if red is not None and value > red:
        return Severity.RED
    return Severity.WARN if value > warn else Severity.OK
