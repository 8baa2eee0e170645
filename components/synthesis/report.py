"""What became of a round's proposals, and how much longer its tasks are than those of the round before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

TOLD = 10
"""Rejections that an error message quotes."""


@dataclass(frozen=True, slots=True)
class Fate:
    """One proposal. `reason` is empty for an accepted one; else it is told with what was seen."""

    task: str
    family: str
    operator: str
    parents: tuple[str, ...]
    repairs: int
    reason: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Sized(Protocol):
    """A task whose length is known."""

    @property
    def turns(self) -> int:
        """Of its reference solution."""
        ...

    @property
    def assertions(self) -> int:
        """That earn a reward."""
        ...

    @property
    def words(self) -> int:
        """Of its instruction."""
        ...


@dataclass(frozen=True, slots=True)
class Size:
    """Medians over tasks: turns of the reference solution, assertions that earn a reward, words of the instruction."""

    turns: float
    assertions: float
    words: float

    @classmethod
    def of(cls, tasks: Sequence[Sized]) -> Size:
        return cls(
            median(each.turns for each in tasks),
            median(each.assertions for each in tasks),
            median(each.words for each in tasks),
        )


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round. `before` is the size of what it made longer tasks of; `after` is absent where it accepted none."""

    round: int
    fates: tuple[Fate, ...]
    before: Size
    after: Size | None

    @classmethod
    def of(cls, number: int, fates: Iterable[Fate], before: Sequence[Sized], after: Sequence[Sized]) -> RoundReport:
        """The report of round `number`, which made tasks of `before`, and accepted `after`."""
        return cls(number, tuple(fates), Size.of(before), Size.of(after) if after else None)

    @property
    def accepted(self) -> int:
        return sum(not fate.reason for fate in self.fates)

    @property
    def share(self) -> float:
        """Accepted of what was proposed; nan where nothing was."""
        return self.accepted / len(self.fates) if self.fates else float("nan")

    def reasons(self) -> list[str]:
        """Some of the rejections."""
        return [f"{fate.task}: {fate.reason}: {fate.detail}" for fate in self.fates if fate.reason][:TOLD]

    def metrics(self) -> dict[str, float]:
        """Figures of the round; those of accepted tasks are absent where there is none."""
        size = {} if self.after is None else {f"{name}_median": value for name, value in asdict(self.after).items()}
        return {"proposed": float(len(self.fates)), "accepted": float(self.accepted), **size}

    def row(self) -> dict[str, Any]:
        """For a table."""
        kinds = Counter(fate.family for fate in self.fates if not fate.reason)
        return {
            "round": self.round,
            **self.metrics(),
            "proposed": len(self.fates),
            "accepted": self.accepted,
            "accepted_share": round(self.share, 3),
            "repaired": sum(bool(fate.repairs) and not fate.reason for fate in self.fates),
            "families": dict(sorted(kinds.items())),
            "rejected": dict(sorted(Counter(fate.reason for fate in self.fates if fate.reason).items())),
        }

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.row().items())
