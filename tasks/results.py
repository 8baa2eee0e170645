"""What the stages hand to each other: small references into the artifact store, never the data itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pool:
    """A curated pool."""

    key: str
    digest: str
    accepted: int
    rejected: int
    seconds: float


@dataclass(frozen=True)
class GrownPool:
    """Tasks that were made of a pool's: a folder in the store, and where that is."""

    key: str
    address: str
    digest: str
    tasks: int


@dataclass(frozen=True)
class Checkpoint:
    """A model folder in the store, and how it came about."""

    label: str
    """`base`, `sft`, `leg-1`, …"""
    key: str
    step: int
    """RL steps behind it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: str | None = None
    """The trainer's state, for the next leg."""
    launched: int = 0
    cancelled: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Samples:
    """What SFT learns from: a corpus in the store, of some of the trials that were tried."""

    key: str
    kept: int
    tried: int
    seconds: float = 0.0


@dataclass(frozen=True)
class WarmCritic:
    """A critic's weights in the store, for RL to begin with."""

    key: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Score:
    """A checkpoint on held-out tasks."""

    label: str
    step: int
    n: int
    pass_rate: float | None
    stderr: float | None
    assertions_passed: float | None
    turns_mean: float | None
    result: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Everything the job said."""

    @classmethod
    def of(cls, result: Mapping[str, Any], step: int) -> Score:
        """Reads an evaluation job's result."""
        names = ("label", "n", "pass_rate", "stderr", "assertions_passed", "turns_mean")
        return cls(**{name: result[name] for name in names}, step=step, result=result)

    def row(self) -> dict[str, Any]:
        """The figures of the campaign's last line."""
        return {"pass_rate": self.pass_rate, "stderr": self.stderr, "n": self.n}


@dataclass(frozen=True)
class Diagnosis:
    """The report of a campaign."""

    report: str
    figures: tuple[str, ...]
    verdict: str
    severity: str
    """ok, blind, warn or red."""
    findings: tuple[Mapping[str, Any], ...]
