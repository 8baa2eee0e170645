"""Curation: which tasks enter the pool, and the evidence for it."""

from components.curation.audit import FAULT, Audit, admit, audit, with_assertions
from components.curation.contamination import Benchmark, contaminations
from components.curation.endpoint import Endpoint
from components.curation.gates import Evidence, gate, judge
from components.curation.result import Flag, GateResult, Refused, Rejection
from components.curation.screen import CONTAMINATED, screen
from components.curation.selection import Candidate, assertion_statistics, composition, select

__all__ = [
    "CONTAMINATED",
    "FAULT",
    "Audit",
    "Benchmark",
    "Candidate",
    "Endpoint",
    "Evidence",
    "Flag",
    "GateResult",
    "Refused",
    "Rejection",
    "admit",
    "assertion_statistics",
    "audit",
    "composition",
    "contaminations",
    "gate",
    "judge",
    "screen",
    "select",
    "with_assertions",
]
