"""The ledger of a step: what became of every trial that was alive in it.

Invariant: every trial that the step launched or resumed has exactly one row, and launched + resumed = sum of the
outcomes, for the step and for every class. What was cancelled is counted by class, so that a tail that is cut is seen
(the paper's rule trains 13.6 % hard tasks where 20 % were submitted).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from components.errors import FaultCause, RecordError, StopReason
from components.outcomes import REJECTIONS
from components.records import TaskRef


class Outcome(StrEnum):
    """What became of a trial in the step of its row."""

    ADMITTED = "admitted"
    CANCELLED = "cancelled"
    CARRIED = "carried"
    """It was launched in this step, and goes on in the next."""
    CONTINUED = "continued"
    """It was carried into this step, and goes on in the next."""
    INFRA_FAULT = "infra_fault"


class Origin(StrEnum):
    """Where a trial of a step comes from."""

    DRAWN = "drawn"
    """Its task is the pool's next."""
    RELAUNCHED = "relaunched"
    """Its task was launched before in this step, and faulted."""
    RETURNED = "returned"
    """The step before passed its task over; it is launched anew."""
    RESUMED = "resumed"
    """It was carried: it goes on, and is no launch of this step."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One trial.

    `streak`: how many steps in a row had passed its task over before this one. `outcome` is None only while it is alive
    in this step; turns, tokens and seconds are those it had come to, over all its steps.
    """

    step: int
    trial_id: str
    task_id: str
    attempt: int
    origin: Origin
    streak: int
    category: str
    difficulty: str
    lineage_depth: int
    outcome: Outcome | None = None
    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    stop: StopReason | None = None
    fault: FaultCause | None = None
    detail: str = ""


CLASSES = ("category", "difficulty", "lineage_depth")
"""Columns whose values are the classes that shares are compared by."""
SIZES = ("turns", "tokens", "seconds")
"""Columns whose classes go by powers of two: what a step passes over is what takes long."""


class Ledger:
    """Rows of one step, in the order in which it launched and resumed them."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._rows: dict[str, LedgerRow] = {}

    def launch(self, trial_id: str, task: TaskRef, attempt: int, *, origin: Origin, streak: int = 0) -> None:
        if trial_id in self._rows:
            raise RecordError(f"trial {trial_id} is launched twice in step {self.step}")
        self._rows[trial_id] = LedgerRow(
            step=self.step,
            trial_id=trial_id,
            task_id=task.task_id,
            attempt=attempt,
            origin=origin,
            streak=streak,
            category=task.category,
            difficulty=task.difficulty,
            lineage_depth=len(task.lineage),
        )

    def end(self, trial_id: str, outcome: Outcome, **facts: Any) -> None:
        """Closes the row of a launched trial. `facts` are columns: turns, tokens, seconds, stop, fault, detail."""
        row = self._rows.get(trial_id)
        if row is None or row.outcome is not None:
            state = "was never launched" if row is None else f"has already ended as {row.outcome}"
            raise RecordError(f"trial {trial_id} {state} in step {self.step}")
        self._rows[trial_id] = replace(row, outcome=outcome, **facts)

    def check(self) -> None:
        """Raises RecordError when a trial has no outcome."""
        if alive := [row.trial_id for row in self._rows.values() if row.outcome is None]:
            raise RecordError(f"step {self.step}: {len(alive)} trials have no outcome, first {alive[0]}")

    @property
    def rows(self) -> Sequence[LedgerRow]:
        return tuple(self._rows.values())

    def records(self) -> list[dict[str, Any]]:
        """Rows as plain values, for JSON, parquet and tables."""
        return [{name: _plain(value) for name, value in asdict(row).items()} for row in self.rows]

    @staticmethod
    def from_records(step: int, records: Sequence[Mapping[str, Any]]) -> Ledger:
        ledger = Ledger(step)
        for record in records:
            row = LedgerRow(**record)
            ledger._rows[row.trial_id] = replace(
                row,
                origin=Origin(row.origin),
                outcome=None if row.outcome is None else Outcome(row.outcome),
                stop=None if row.stop is None else StopReason(row.stop),
                fault=None if row.fault is None else FaultCause(row.fault),
            )
        return ledger

    def counts(self) -> dict[Outcome, int]:
        """Number of trials by outcome, every outcome present."""
        found = Counter(row.outcome for row in self._rows.values())
        return {outcome: found[outcome] for outcome in Outcome}

    def metrics(self) -> dict[str, float]:
        """Counts by outcome, cancellations and share gaps by class, faults by cause."""
        self.check()
        counts = self.counts()
        metrics = {
            "rollout/launched": float(sum(row.origin is not Origin.RESUMED for row in self.rows)),
            "rollout/resumed": float(sum(row.origin is Origin.RESUMED for row in self.rows)),
            "rollout/admitted": float(counts[Outcome.ADMITTED]),
            "rollout/cancelled": float(counts[Outcome.CANCELLED]),
            "rollout/carried": float(counts[Outcome.CARRIED]),
            "rollout/continued": float(counts[Outcome.CONTINUED]),
            "rollout/infra_faults": float(counts[Outcome.INFRA_FAULT]),
            "rollout/rejected": float(sum(row.fault in REJECTIONS for row in self.rows)),
        }
        causes = Counter(row.fault for row in self._rows.values() if row.outcome is Outcome.INFRA_FAULT)
        metrics |= {f"fault/{cause.value}": float(causes[cause]) for cause in FaultCause}
        for column in CLASSES:
            metrics |= self._class_metrics(column)
        return metrics | self._size_metrics()

    def _class_metrics(self, column: str) -> dict[str, float]:
        rows = self.rows
        submitted = Counter(getattr(row, column) for row in rows if row.origin is Origin.DRAWN)
        cancelled = Counter(getattr(row, column) for row in rows if row.outcome is Outcome.CANCELLED)
        trained = Counter(getattr(row, column) for row in rows if row.outcome is Outcome.ADMITTED)
        metrics = {}
        for name in {getattr(row, column): None for row in rows}:
            key = metric_key(f"{column}.{name}")
            metrics[f"rollout/cancelled_by/{key}"] = float(cancelled[name])
            if trained and submitted:
                gap = trained[name] / trained.total() - submitted[name] / submitted.total()
                metrics[f"rollout/share_gap/{key}"] = gap
        return metrics

    def _size_metrics(self) -> dict[str, float]:
        """Mean size of what was cancelled or carried, so far, beside `turns_mean` of what was admitted."""
        metrics = {}
        for passed, outcomes in _PASSED_OVER.items():
            rows = [row for row in self.rows if row.outcome in outcomes]
            for name in SIZES:
                values = [value for row in rows if (value := getattr(row, name)) is not None]
                if values:
                    metrics[f"rollout/{passed}_{name}_mean"] = sum(values) / len(values)
        return metrics


_PASSED_OVER = {"cancelled": {Outcome.CANCELLED}, "carried": {Outcome.CARRIED, Outcome.CONTINUED}}


def by_class(rows: Sequence[LedgerRow]) -> list[dict[str, Any]]:
    """What became of the trials of every class, one row a class; `rows` may be of several steps.

    In each, launched + resumed = the sum of the outcomes. `drawn_share` and `admitted_share` are of its column's
    whole, and absent (None) where that is nothing.
    """
    found = []
    for column in (*CLASSES, *SIZES):
        classes: dict[Any, list[LedgerRow]] = {}
        for row in rows:
            classes.setdefault(_class_of(row, column), []).append(row)
        for value in sorted(classes, key=lambda value: (value is None, value)):
            found.append({"column": column, "class": _class_name(value, column)} | _outcomes(classes[value], rows))
    return found


def _outcomes(rows: Sequence[LedgerRow], every: Sequence[LedgerRow]) -> dict[str, Any]:
    counts = Counter(row.outcome for row in rows)
    drawn, all_drawn = (sum(row.origin is Origin.DRAWN for row in some) for some in (rows, every))
    admitted, all_admitted = (sum(row.outcome is Outcome.ADMITTED for row in some) for some in (rows, every))
    resumed = sum(row.origin is Origin.RESUMED for row in rows)
    return {
        "launched": len(rows) - resumed,
        "resumed": resumed,
        **{outcome.value: counts[outcome] for outcome in Outcome},
        "drawn_share": drawn / all_drawn if all_drawn else None,
        "admitted_share": admitted / all_admitted if all_admitted else None,
    }


def _class_of(row: LedgerRow, column: str) -> Any:
    """Of a size, the number of its binary digits; None where it is not known."""
    value = getattr(row, column)
    return value if column in CLASSES or value is None else int(value).bit_length()


def _class_name(value: Any, column: str) -> str:
    if column in CLASSES or value is None:
        return "unknown" if value is None else str(value)
    return str(value) if value < 2 else f"{1 << (value - 1)} to {(1 << value) - 1}"


KEY_CHARS = 80
"""Most of a class name that a metric's name has."""


def metric_key(text: str) -> str:
    """A class name as part of a metric name: MLflow allows letters, digits and `_-. /`, 250 of them in all.

    Classes are of whoever made the tasks: what is cut off a long one is told apart by its digest.
    """
    key = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    if len(key) <= KEY_CHARS:
        return key
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{key[: KEY_CHARS - len(digest) - 1]}-{digest}"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value
