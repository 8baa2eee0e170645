"""Curation: which tasks enter the pool, and the evidence for it."""

from components.curation.audit import Audit, admit, audit
from components.curation.contamination import Benchmark
from components.curation.gates import Evidence, gate, judge
from components.curation.result import Flag, GateResult, Refused, Rejection
from components.curation.screen import screen

__all__ = [
    "Audit",
    "Benchmark",
    "Evidence",
    "Flag",
    "GateResult",
    "Refused",
    "Rejection",
    "admit",
    "audit",
    "gate",
    "judge",
    "screen",
]
