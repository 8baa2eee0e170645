"""Selects the best tasks of a pool under caps, and says what the selection is made of.

Invariants: the order is by quality, then by name, and depends on nothing else; a task that is left out has one reason;
nothing is selected past a cap to fill the number that was asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from components.config import SelectionConfig
from components.pool import LeftOut, Task
from components.records import TaskRef

RANK = "rank"
PERCENTILE = 0.9
"""S lies near this quantile of the assertions a task (paper Eq 20)."""
TARGET: Mapping[str, float] = MappingProxyType(
    {
        "Scripting & Automation": 0.1786,
        "Software development": 0.165,
        "System administration": 0.138,
        "Environment & package setup": 0.104,
        "Version control": 0.093,
        "Data science": 0.037,
        "Files & documents": 0.0253,
        "Other": 0.0227,
        "Cloud & deployment": 0.0183,
        "Debugging": 0.0126,
        "Performance & observability": 0.0099,
        "Documentation": 0.0056,
    }
)
"""Shares of the paper's pool. Of its 17 categories it names these; five are not printed."""
UNNAMED, UNNAMED_SHARE = "five categories that the paper does not name", round(1 - sum(TARGET.values()), 4)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An accepted task.

    Attributes:
        quality: what it is ranked by, from 0 to 1.
        category, family, parent, cohort: what caps count it under; None where the task does not say.
        assertions: those that the reward may count.
        binary_only: its verifier names no assertion, so that its reward is 0 or 1. It is counted apart.
    """

    task_id: str
    quality: float
    category: str
    family: str | None = None
    parent: str | None = None
    cohort: str | None = None
    assertions: int = 0
    binary_only: bool = False

    @classmethod
    def measured(cls, ref: TaskRef) -> Candidate:
        """One that nobody has judged."""
        counted = len(ref.fail_to_pass)
        return cls(ref.task_id, 0.0, ref.category, assertions=counted, binary_only=ref.binary_only)

    @classmethod
    def of(cls, task: Task, quality: float) -> Candidate:
        """Reads the groups of a task whose assertions were measured from its lineage."""
        own, lineage = cls.measured(task.ref), task.manifest.lineage
        return replace(own, quality=quality, family=lineage.family, parent=lineage.parent, cohort=lineage.cohort)


@dataclass(frozen=True, slots=True)
class Selection:
    """Who is selected, the best first, and why the others are not."""

    selected: Sequence[Candidate]
    left_out: Sequence[LeftOut]


def select(candidates: Iterable[Candidate], count: int, caps: SelectionConfig) -> Selection:
    """The `count` best candidates of which no group has more than its cap."""
    limits = {
        "category": caps.per_category,
        "family": caps.per_family,
        "parent": caps.per_parent,
        "cohort": caps.per_cohort,
    }
    taken: Counter[tuple[str, str]] = Counter()
    selected: list[Candidate] = []
    left_out: list[LeftOut] = []
    ranked = sorted(candidates, key=lambda candidate: (-candidate.quality, candidate.task_id))
    for place, candidate in enumerate(ranked, 1):
        groups = {name: getattr(candidate, name) for name, limit in limits.items() if limit is not None}
        full = [(n, g) for n, g in groups.items() if g is not None and taken[n, g] >= (limits[n] or 0)]
        where = f"place {place} of {len(ranked)}, quality {candidate.quality:.3f}"
        if len(selected) == count:
            left_out.append(LeftOut(candidate.task_id, RANK, f"{where}: {count} better ones are selected"))
        elif full:
            told = ", ".join(f"{limits[name]} better ones of {name} {group}" for name, group in full)
            left_out.append(LeftOut(candidate.task_id, f"cap_{full[0][0]}", f"{where}: {told} are selected"))
        else:
            selected.append(candidate)
            taken.update((name, group) for name, group in groups.items() if group is not None)
    return Selection(selected, left_out)


def composition(selected: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Rows of category, tasks, those that are binary only, share, and the share of the paper's pool.

    None stands where the paper tells no share, or no name.
    """
    binary = Counter(candidate.category for candidate in selected if candidate.binary_only)
    found = Counter(candidate.category for candidate in selected)
    total = len(selected)
    rows: list[dict[str, Any]] = []
    for name in (*TARGET, *sorted(found.keys() - TARGET.keys())):
        share = round(found[name] / total, 4) if total else None
        rows.append(
            {
                "category": name,
                "tasks": found[name],
                "binary_only": binary[name],
                "share": share,
                "target": TARGET.get(name),
            }
        )
    rows.append({"category": UNNAMED, "tasks": None, "binary_only": None, "share": None, "target": UNNAMED_SHARE})
    return rows


def assertion_statistics(selected: Sequence[Candidate]) -> dict[str, float | int | None]:
    """Of the assertions a task: how many tasks, the least, median, 90th percentile (nearest rank) and most.

    `implied_scale` is the S that this pool asks for: the 90th percentile. Binary-only tasks are counted apart; where
    there are no others, nothing is told of assertions.
    """
    counted = sorted(candidate.assertions for candidate in selected if not candidate.binary_only)
    apart = {"binary_only": len(selected) - len(counted)}
    if not counted:
        return {"tasks": 0, "min": None, "median": None, "p90": None, "max": None, "implied_scale": None, **apart}
    p90 = counted[math.ceil(PERCENTILE * len(counted)) - 1]
    middle = len(counted) // 2
    median = counted[middle] if len(counted) % 2 else (counted[middle - 1] + counted[middle]) / 2
    return {
        "tasks": len(counted),
        "min": counted[0],
        "median": median,
        "p90": p90,
        "max": counted[-1],
        "implied_scale": p90,
        **apart,
    }
