"""Diagnosis of a run from its own numbers."""

from components.diagnostics.figures import figures
from components.diagnostics.findings import Diagnosis, Finding, Severity, diagnose
from components.diagnostics.report import render
from components.diagnostics.series import Evaluation, Series, StepRecord

__all__ = ["Diagnosis", "Evaluation", "Finding", "Series", "Severity", "StepRecord", "diagnose", "figures", "render"]
