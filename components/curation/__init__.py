"""Curation: which tasks enter the pool, and the evidence for it."""

from components.curation.audit import Audit, admit, audit
from components.curation.contamination import Benchmark
from components.curation.gates import Evidence, GateResult, Refused, Rejection, gate, judge
from components.curation.screen import screen

__all__ = [
    "Audit",
    "Benchmark",
    "Evidence",
    "GateResult",
    "Refused",
    "Rejection",
    "admit",
    "audit",
    "gate",
    "judge",
    "screen",
]
