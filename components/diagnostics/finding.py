"""What a detector says, and what all of them say together.

Invariant: a finding is drawn only from what was measured; a detector without its series reports that it was blind. The
verdict is the worst finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How bad a finding is."""

    OK = 0
    BLIND = 1
    WARN = 2
    RED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement about a run.

    Attributes:
        name: the detector's.
        severity: how bad it is.
        text: the statement, with its figures.
        value: the number it rests on; None when blind.
        evidence: what else was measured that speaks for it or tells its cause, a sentence each.
    """

    name: str
    severity: Severity
    text: str
    value: float | None = None
    evidence: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "severity": self.severity.name.lower(),
            "text": self.text,
            "value": self.value,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a run, the worst first."""

    findings: tuple[Finding, ...]

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.BLIND)

    @property
    def verdict(self) -> str:
        """One line."""
        worst = [finding for finding in self.findings if finding.severity is self.severity]
        if self.severity <= Severity.BLIND:
            blind = sum(finding.severity is Severity.BLIND for finding in self.findings)
            told = f"; {blind} detector{'s were' if blind > 1 else ' was'} blind" if blind else ""
            return f"ok: nothing is wrong in what was measured{told}"
        return f"{self.severity.name.lower()}: " + "; ".join(finding.text for finding in worst)
