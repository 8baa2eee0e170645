"""Two checkpoints on the same tasks: which of them is better, by how much, and whether that is more than chance.

Invariant: a word of judgement is only said where the interval of the mean difference does not hold zero; where all
differences are equal there is none, and the sign test decides at the same confidence. Tasks are paired by name and
content; an attempt that ended in an infrastructure fault is in no figure.

The interval is Student's over per-task differences. Percentile and BCa bootstraps of the same differences held the true
value less often than they say (docs/evaluation.md); Student's does not need resampling, and is checked by simulation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy import stats

from components.records import Trial

CONFIDENCE = 0.95
Verdict = Literal["better", "worse", "not told apart"]
Rates = Mapping[tuple[str, str], float]
"""By task id and content digest, the share of graded attempts that resolved the task."""


@dataclass(frozen=True, slots=True)
class Change:
    """A task of which another share of the attempts succeeds than before."""

    task_id: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of the tasks that both have tried.

    Attributes:
        tasks: how many tasks there are of both.
        before, after: mean over these tasks of the share of attempts that resolved them.
        interval: of after - before, at 95 % confidence; None when all differences are equal, which tells no spread.
        sign_p: two-sided exact sign test over the tasks that changed; None when none did.
        gains, regressions: the tasks that changed, the largest change first.
        unpaired: tasks that only one of them has tried, or that have another content.
    """

    tasks: int
    before: float
    after: float
    interval: tuple[float, float] | None
    sign_p: float | None
    gains: tuple[Change, ...]
    regressions: tuple[Change, ...]
    unpaired: tuple[str, ...]

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def verdict(self) -> Verdict:
        """Of `after`; in doubt there is none."""
        if self.interval is not None:
            told = not self.interval[0] <= 0 <= self.interval[1]
        else:  # every task was gained, or lost
            told = self.sign_p is not None and self.sign_p < 1 - CONFIDENCE
        if not told:
            return "not told apart"
        return "better" if self.difference > 0 else "worse"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference, "verdict": self.verdict}

    def metrics(self, series: str) -> dict[str, float]:
        """The `eval/<series>/vs_previous/...` series."""
        prefix = f"eval/{series}/vs_previous"
        values = {
            f"{prefix}/difference": self.difference,
            f"{prefix}/tasks": float(self.tasks),
            f"{prefix}/gained": float(len(self.gains)),
            f"{prefix}/regressed": float(len(self.regressions)),
        }
        if self.interval is not None:
            values |= {f"{prefix}/low": self.interval[0], f"{prefix}/high": self.interval[1]}
        return values


def rates(trials: Iterable[Trial]) -> dict[tuple[str, str], float]:
    """Per task, of its graded attempts."""
    attempts: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for trial in trials:
        if trial.report is not None:
            attempts[trial.task.task_id, trial.task.digest].append(trial.report.outcome is True)
    return {task: sum(passed) / len(passed) for task, passed in attempts.items()}


def compare(before: Rates, after: Rates) -> Comparison:
    """Pairs the tasks of two evaluations.

    Raises:
        ValueError: they have no task in common.
    """
    common = sorted(before.keys() & after.keys())
    if not common:
        raise ValueError(
            f"no task in common: {len(before)} tasks before, {len(after)} after, of other names or contents"
        )
    changes = [Change(task[0], before[task], after[task]) for task in common]
    differences = [change.after - change.before for change in changes]
    gains = [change for change in changes if change.after > change.before]
    regressions = [change for change in changes if change.after < change.before]
    return Comparison(
        tasks=len(common),
        before=_mean([change.before for change in changes]),
        after=_mean([change.after for change in changes]),
        interval=mean_interval(differences),
        sign_p=_sign_test(len(gains), len(regressions)),
        gains=_largest_first(gains),
        regressions=_largest_first(regressions),
        unpaired=tuple(sorted({task for task, _ in before.keys() ^ after.keys()})),
    )


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student's interval of the mean of independent values; None where they have no spread."""
    if len(set(values)) < 2:
        return None
    mean, n = _mean(values), len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return mean - half, mean + half


def describe(found: Comparison) -> str:
    """Some lines for a person, markdown."""
    low, high = found.interval or (None, None)
    span = "no spread" if low is None or high is None else f"95 % within {low:+.1%} … {high:+.1%}"
    sign = "" if found.sign_p is None else f", sign test p = {found.sign_p:.3g}"
    lines = [
        f"**{found.verdict}**: {found.before:.1%} → {found.after:.1%} over {found.tasks} tasks "
        f"({found.difference:+.1%}; {span}{sign})",
    ]
    for name, changes in (("regressions", found.regressions), ("gains", found.gains)):
        lines.append(f"{len(changes)} {name}" + (":" if changes else ""))
        lines += [f"- {change.task_id}: {change.before:.0%} → {change.after:.0%}" for change in changes]
    if found.unpaired:
        lines.append(f"{len(found.unpaired)} tasks of one of them alone, or of another content: not compared")
    return "\n".join(lines)


def _sign_test(gained: int, regressed: int) -> float | None:
    changed = gained + regressed
    return float(stats.binomtest(gained, changed).pvalue) if changed else None


def _largest_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: (-abs(change.after - change.before), change.task_id)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
