"""What curation says of a task: why it is not accepted, or what was measured of it, and what a judge should look at.

Invariant: a rejection is certain and names what was seen; what only speaks against a task is a flag beside the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

QUOTE_CHARS = 160
"""Of a line, a command or a list that is quoted."""


class Rejection(StrEnum):
    """Why a task is not accepted."""

    BUILD = "build"
    NO_SOLUTION = "no_solution"
    NO_REPORT = "no_report"
    BINARY_ONLY = "binary_only"
    ORACLE_FAILS = "oracle_fails"
    NOOP_PASSES = "noop_passes"
    FLAKY = "flaky"
    UNDECLARED = "undeclared_assertions"
    LEAK = "leak"
    SHORTCUT = "shortcut"
    WEAK_VERIFIER = "weak_verifier"
    HIDDEN_REQUIREMENT = "hidden_requirement"


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that execution showed and that is no proof: evidence for who judges.

    Attributes:
        kind: a `Rejection` that it speaks for, or `unprobed` for what could not be tried.
        detail: what was seen.
    """

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


UNPROBED = "unprobed"


class Refused(Exception):
    """A gate that did not open."""

    def __init__(self, rejection: Rejection, detail: str) -> None:
        self.rejection = rejection
        self.detail = detail
        super().__init__(rejection, detail)


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gates saw of one version of one task. `rejection` is None for an accepted task."""

    task_id: str
    digest: str
    rejection: Rejection | None
    detail: str = ""
    assertion_ids: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    seconds: float = 0.0
    flags: tuple[Flag, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GateResult:
        """Raises KeyError, TypeError or ValueError when `document` is not one."""
        values = {f.name: document[f.name] for f in fields(cls)}
        for name in ("assertion_ids", "fail_to_pass", "pass_to_pass"):
            values[name] = tuple(values[name])
        values["rejection"] = None if values["rejection"] is None else Rejection(values["rejection"])
        values["flags"] = tuple(Flag(**flag) for flag in values["flags"])
        return cls(**values)


def quoted(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= QUOTE_CHARS else f"{line[:QUOTE_CHARS]}…"


def listed(names: list[str], most: int = 6) -> str:
    """The first of some names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
