"""Where a task comes from: its ancestors, and the round, operator, family and cohort of a recursive synthesis.

Invariant: what a task says under any of the names below is kept under one; nothing is made up for a task that is
silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMES: Mapping[str, tuple[str, ...]] = {
    "seed": ("seed", "seed_id", "root", "root_id"),
    "parent": ("parent", "parent_id", "parent_task", "parent_task_id"),
    "round": ("round", "generation"),
    "family": ("family",),
    "operator": ("operator",),
    "cohort": ("cohort",),
}
"""Of each field, the keys that synthesised pools use for it, in `[metadata]` or in `[metadata.lineage]`."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a task comes from.

    Attributes:
        ancestors: the oldest first.
        parents: all that it was made of, `parent` first.

    The rest as text, None where the task does not say.
    """

    ancestors: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    parent: str | None = None
    round: str | None = None
    family: str | None = None
    operator: str | None = None
    cohort: str | None = None

    def named(self) -> dict[str, str]:
        """The fields that the task does say, by their names."""
        fields = {name: getattr(self, name) for name in NAMES if name != "seed"}
        return {name: value for name, value in fields.items() if value is not None}


def read_lineage(metadata: Mapping[str, Any]) -> tuple[Lineage, list[str]]:
    """The lineage that a task's `[metadata]` tells, and every problem with it, each with its key."""
    told = metadata.get("lineage", ())
    if isinstance(told, list | tuple):
        if not all(isinstance(name, str) for name in told):
            return Lineage(), [f"metadata.lineage: must be a list of strings, is {told!r}"]
        table, place = metadata, "metadata"
    elif isinstance(told, dict):
        table, place = {**metadata, **told}, "metadata.lineage"
    else:
        return Lineage(), [f"metadata.lineage: must be a list of ancestors or a table, is {told!r}"]
    values, problems = {}, []
    for field, keys in NAMES.items():
        key = next((key for key in keys if table.get(key) is not None), None)
        value = None if key is None else table[key]
        if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
            values[field] = None if value is None else str(value)
        else:
            problems.append(f"{place}.{key}: must be a name or a number, is {value!r}")
    parents = table.get("parents", [])
    if not isinstance(parents, list) or not all(isinstance(name, str) for name in parents):
        problems.append(f"{place}.parents: must be a list of strings, is {parents!r}")
    if problems:
        return Lineage(), problems
    seed = values.pop("seed")
    every = tuple(dict.fromkeys(name for name in (values["parent"], *parents) if name is not None))
    line = told if isinstance(told, list | tuple) and told else [seed, values["parent"]]
    return Lineage(tuple(dict.fromkeys(name for name in line if name is not None)), every, **values), []
