"""Curation: which tasks enter the pool, and the evidence for it."""

from components.curation.audit import Audit, admit, audit
from components.curation.gates import Evidence, GateResult, Refused, Rejection, gate, judge

__all__ = ["Audit", "Evidence", "GateResult", "Refused", "Rejection", "admit", "audit", "gate", "judge"]
