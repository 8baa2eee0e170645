"""Step records and evaluation scores, as the series that findings and figures are made of.

Invariant: a step that did not measure something has no point in its series; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

StepRecord = Mapping[str, Any]
"""{"step": int, "timestamp_ms": int, "metrics": {name: float}}, as a job commits it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluated checkpoint.

    Attributes:
        name: what was evaluated, e.g. "base", "sft", "step-10".
        step: RL steps behind it; 0 before RL.
        score: `SuiteScore.to_json()`.
    """

    name: str
    step: int
    score: Mapping[str, Any]


class Series:
    """Metrics of a run by name, in the order of steps. The last record of a step wins."""

    def __init__(self, records: Sequence[StepRecord]) -> None:
        by_step = {int(record["step"]): record["metrics"] for record in records}
        self.steps: tuple[int, ...] = tuple(sorted(by_step))
        self._metrics = [by_step[step] for step in self.steps]

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of every step that measured it. A NaN is not a measurement."""
        found = zip(self.steps, self._metrics, strict=True)
        return [(step, float(m[name])) for step, m in found if name in m and float(m[name]) == float(m[name])]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    def total(self, name: str) -> float | None:
        values = self.values(name)
        return sum(values) if values else None

    def mean(self, name: str) -> float | None:
        return mean(self.values(name))

    def names(self, prefix: str) -> list[str]:
        return sorted({name for metrics in self._metrics for name in metrics if name.startswith(prefix)})

    def late(self, name: str) -> list[float]:
        """Values of the last third of the steps that measured it, at least one."""
        values = self.values(name)
        return values[-max(1, len(values) // 3) :] if values else []

    def early(self, name: str) -> list[float]:
        values = self.values(name)
        return values[: max(1, len(values) // 3)]


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
