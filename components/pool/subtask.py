"""What one family contributes to a task.

A family is a wording, a reference solution and a way to draw instances; a subtask is one instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from components.pool.lexicon import Draw
from components.pool.outline import Check, Step

Group = Literal["files", "text", "search", "git"]
GUARD = "kept"
"""The name of every check that holds untouched already. What a solution must not break is no credit."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What a family draws: the words that fill its wording, the files it needs, what must hold in the end."""

    slots: Mapping[str, str]
    files: Mapping[str, str]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of subtask. `wording` and `solution` are filled from an instance's slots."""

    name: str
    group: Group
    wording: str
    solution: str
    draw: Callable[[Draw], Instance]


@dataclass(frozen=True, slots=True)
class Subtask:
    """One instance of a family within a task."""

    family: Family
    instance: Instance

    @property
    def instruction(self) -> str:
        return self.fill(self.family.wording)

    @property
    def solution(self) -> str:
        """The reference commands. They need not look at anything first, unlike an agent."""
        return self.fill(self.family.solution)

    @property
    def step(self) -> Step:
        """This subtask as it is written down."""
        checks = self.instance.checks
        guards = frozenset(check.name for check in checks if check.name == GUARD)
        return Step(self.family.name, self.instruction, self.solution, checks, guards)

    def fill(self, template: str, **found: str) -> str:
        """`template` with this instance's slots, and with what an agent `found` by looking."""
        return template.format(**self.instance.slots, **found)
