"""A proposed task: what an operator made of others, and the directory that it becomes.

Invariants: the lineage of a draft is complete (parents, operator, round, ancestors); a directory appears whole, by one
rename; the same draft writes the same bytes.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from components.pool.directory import outline_files, write_files
from components.pool.outline import Outline, difficulty
from components.pool.toml_text import toml_text
from components.synthesis.measure import words
from components.synthesis.source import Source


@dataclass(frozen=True, slots=True)
class Draft:
    """One proposal.

    Attributes:
        family: the kind of operator that made it.
        operator: which of its kind, by the step that it added.
        parents: what it was made of; the first is the one that it continues.
        parts: all of its steps, those of its parents among them; in one box, one after the other.
        turns: of its reference solution.
    """

    family: str
    operator: str
    parents: tuple[Source, ...]
    parts: tuple[Outline, ...]
    turns: int

    @property
    def outline(self) -> Outline:
        steps = tuple(step for part in self.parts for step in part.steps)
        return Outline(steps, {path: text for part in self.parts for path, text in part.files.items()})

    @property
    def first(self) -> Source:
        return self.parents[0]

    @property
    def instruction(self) -> str:
        return self._texts("", {})["instruction.md"]

    @property
    def words(self) -> int:
        return words(self.instruction)

    @property
    def content(self) -> tuple[str, ...]:
        """What is asked and given: two drafts of one content are one task."""
        return (self.instruction, *(f"{path}\0{text}" for path, text in sorted(self.outline.files.items())))

    @property
    def declared(self) -> Sequence[str]:
        """Assertions that may hold untouched: the guards of our steps, and of another dialect what already did."""
        if self.first.extends is None:
            return self.outline.guards
        ours = {name for name, _ in self.first.outline.checks}
        return [*self.outline.guards, *(name for name in self.first.ref.pass_to_pass if name not in ours)]

    def write(self, folder: Path, *, round_: int) -> None:
        """Writes the task directory `folder`, whose name is the task's; what stands there is replaced."""
        first = self.first.ref
        metadata = {
            "difficulty": difficulty(self.turns) if self.first.extends is None else first.difficulty,
            "category": first.category,
            **descent(self, round_),
            "pass_to_pass": list(self.declared),
        }
        base = None if self.first.extends is None else self.first.extends.folder
        place(folder, base, self._texts(folder.name, metadata))

    def _texts(self, task_id: str, metadata: Mapping[str, object]) -> Mapping[str, str]:
        extends = self.first.extends
        if extends is None:
            return outline_files(self.outline, task_id, metadata)
        document = tomllib.loads((extends.folder / "task.toml").read_text(encoding="utf-8"))
        kept = {key: value for key, value in document.get("metadata", {}).items() if key != "assertion_ids"}
        return {**extends.files(self.outline), "task.toml": toml_text({**document, "metadata": {**kept, **metadata}})}


class Descends(Protocol):
    """What is made of other tasks."""

    @property
    def family(self) -> str:
        """The kind of operator that made it."""
        ...

    @property
    def operator(self) -> str:
        """Which of its kind."""
        ...

    @property
    def parents(self) -> tuple[Source, ...]:
        """What it was made of; the first is the one that it continues."""
        ...


def descent(task: Descends, round_: int) -> dict[str, Any]:
    """What `[metadata]` says of where a task comes from."""
    first = task.parents[0].ref
    return {
        "lineage": [*first.lineage, first.task_id],
        "parent": first.task_id,
        "parents": [parent.ref.task_id for parent in task.parents],
        "round": round_,
        "operator": task.operator,
        "family": task.family,
    }


def place(folder: Path, base: Path | None, texts: Mapping[str, str]) -> None:
    """Writes a task directory: the files of `base`, and these texts in their place or beside them."""
    writing = folder.parent / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    if base is not None:
        shutil.copytree(base, writing, symlinks=True, dirs_exist_ok=True)
    write_files(texts, writing)
    shutil.rmtree(folder, ignore_errors=True)
    writing.rename(folder)
