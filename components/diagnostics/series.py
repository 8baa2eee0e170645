"""Step records and evaluation scores, as the series that findings and figures are made of.

Invariant: a step that did not measure something has no point in its series; nothing is filled in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

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
        by_step = {int(record["step"]): record for record in records}
        self.steps: tuple[int, ...] = tuple(sorted(by_step))
        self.timestamps_ms: tuple[int, ...] = tuple(int(by_step[step]["timestamp_ms"]) for step in self.steps)
        self._metrics = [by_step[step]["metrics"] for step in self.steps]

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


def share_of(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole`; None where either was not measured or there is no whole."""
    return part / whole if part is not None and whole else None


LIKELY, SURE = 0.975, 0.999
"""How certain a movement is, one-sided: worth a look, and worth an alarm. With two steps on a side chance alone moves
means by two standard errors in one run of ten."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series moved from its first third to its last, by Welch's t.

    Attributes:
        early, late: means of both thirds.
        noise: standard error of the difference; with one value on a side that side is taken as exact.
        freedom: degrees of freedom of `noise`.
        steps: from the middle of the first third to the middle of the last.
    """

    early: float
    late: float
    noise: float
    freedom: float
    steps: float

    @classmethod
    def of(cls, early: Sequence[float], late: Sequence[float], steps: float) -> Trend:
        """Of the values of both thirds.

        Where no value differs within either, as a few of a small batch's pass rates easily do not, they are taken as
        values of one spread: that two steps are equal does not make their mean exact.
        """
        if len(set(early)) == len(set(late)) == 1 and early[0] != late[0]:
            together = [*early, *late]
            n = len(together)
            noise = math.sqrt(_variance_of_mean(together) * n * (1 / len(early) + 1 / len(late)))
            return cls(early[0], late[0], noise, n - 1, steps)
        parts = [(_variance_of_mean(values), len(values)) for values in (early, late)]
        spread = sum(variance for variance, _ in parts)
        weighed = sum(variance**2 / (n - 1) for variance, n in parts if n > 1)
        freedom = spread**2 / weighed if weighed else math.inf
        return cls(sum(early) / len(early), sum(late) / len(late), math.sqrt(spread), freedom, steps)

    @property
    def gain(self) -> float:
        return self.late - self.early

    @property
    def rose(self) -> bool:
        """Likely."""
        return self.gain > self.bound(LIKELY)

    def fell(self, level: float = LIKELY) -> bool:
        """At a level of certainty."""
        return self.gain < 0 and self.gain <= -self.bound(level)

    def bound(self, level: float) -> float:
        """What chance alone moves it by, at most, at a level."""
        return float(stats.t.ppf(level, self.freedom)) * self.noise if self.noise else 0.0


MIN_TREND = 6
"""Fewer steps than this show no trend."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a diagnosis is made of.

    Attributes:
        series: the committed steps of RL.
        evaluations: checkpoints on held-out tasks, in the order of their steps.
        now_ms: the clock, where the run is still going; None where it is looked at afterwards.
    """

    series: Series
    evaluations: tuple[Evaluation, ...]
    now_ms: int | None = None

    def trend(self, name: str) -> Trend | None:
        """None with fewer than `MIN_TREND` steps that measured it."""
        if len(self.series.values(name)) < MIN_TREND:
            return None
        points, early, late = self.series.points(name), self.series.early(name), self.series.late(name)
        apart = (points[-1][0] - points[0][0]) * (1 - len(late) / len(points))
        return Trend.of(early, late, apart)

    def late(self, name: str) -> float | None:
        """Mean over the last third of the steps that measured it."""
        return mean(self.series.late(name))

    def share(self, part: str, whole: str) -> float | None:
        """Total of one count in the total of another."""
        return share_of(self.series.total(part), self.series.total(whole))

    def late_counts(self, part: str, whole: str) -> tuple[float, float] | None:
        """Totals of both over the last third of the steps that measured them: what begins late is thin in a long run.

        None where the third has fewer than `MIN_TREND` steps: the whole of so short a run hides little.
        """
        wholes = dict(self.series.points(whole))
        both = [(value, wholes[step]) for step, value in self.series.points(part) if step in wholes]
        late = both[len(both) - len(both) // 3 :]
        if len(late) < MIN_TREND:
            return None
        return sum(value for value, _ in late), sum(of for _, of in late)

    @property
    def scored(self) -> list[Evaluation]:
        """Evaluations that have a score, by step."""
        found = [evaluation for evaluation in self.evaluations if evaluation.score.get("resolved") is not None]
        return sorted(found, key=lambda evaluation: evaluation.step)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of `values`; 0 with one value, which is then taken as exact."""
    return math.sqrt(_variance_of_mean(values))


def _variance_of_mean(values: Sequence[float]) -> float:
    """Squared standard error of the mean; 0 with one value, which is then taken as exact."""
    n = len(values)
    if n < 2:
        return 0.0
    centre = sum(values) / n
    return sum((value - centre) ** 2 for value in values) / (n - 1) / n
