"""Diagnosis of a run from its own numbers."""

from components.diagnostics.detector import Detector
from components.diagnostics.detectors import DETECTORS
from components.diagnostics.diagnosis import diagnose
from components.diagnostics.figures import figures
from components.diagnostics.finding import Diagnosis, Finding, Severity
from components.diagnostics.page import page
from components.diagnostics.report import render
from components.diagnostics.series import Evaluation, Run, Series, StepRecord
from components.diagnostics.stored import evaluated, read

__all__ = [
    "DETECTORS",
    "Detector",
    "Diagnosis",
    "Evaluation",
    "Finding",
    "Run",
    "Series",
    "Severity",
    "StepRecord",
    "diagnose",
    "evaluated",
    "figures",
    "page",
    "read",
    "render",
]
