"""A task of our own dialect as numbered steps: what each asks, the command that does it, what must hold in the end.

Invariant: numbers and assertion ids come of the order of the steps alone, so that a step can be moved, or joined to
those of another task. The directory of an outline reads back as that outline (`components.pool.directory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion: its name within the step, and the verifier function (`checks.sh`) with its arguments."""

    name: str
    call: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        label: names the step in its assertion ids: `sort` in `2-sort:equals`.
        wording: its line of the instruction, without the number.
        command: its line of the reference solution.
        guards: names of those of `checks` that hold untouched already, and must go on holding.
    """

    label: str
    wording: str
    command: str
    checks: tuple[Check, ...]
    guards: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outline:
    """The steps of a task in order, and the files that stand in the working directory when the agent arrives."""

    steps: tuple[Step, ...]
    files: Mapping[str, str]

    @property
    def instruction(self) -> str:
        return "".join(f"{number}:{step.wording}\n" for number, step in enumerate(self.steps, 1))

    @property
    def solution(self) -> str:
        return "".join(f"{step.command}\n" for step in self.steps)

    @property
    def checks(self) -> list[tuple[str, tuple[str, ...]]]:
        """(assertion id, call) of every assertion, e.g. `2-sort:equals`."""
        return [
            (f"{number}-{step.label}:{check.name}", check.call)
            for number, step in enumerate(self.steps, 1)
            for check in step.checks
        ]

    @property
    def guards(self) -> list[str]:
        """Ids of the assertions that hold untouched already."""
        return [
            f"{number}-{step.label}:{check.name}"
            for number, step in enumerate(self.steps, 1)
            for check in step.checks
            if check.name in step.guards
        ]


def difficulty(steps: int) -> str:
    """By the number of steps: easy to 2, medium 3, hard from 4."""
    return ("easy", "easy", "medium", "hard")[min(steps, 4) - 1]
