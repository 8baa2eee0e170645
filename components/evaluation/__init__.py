"""Evaluation: running held-out tasks and suites under a profile, and scoring what came of them."""

from components.evaluation.profile import Conditions, conditions_of, sampling_of, under_profile, walled
from components.evaluation.runner import RunAttempt, evaluate
from components.evaluation.score import ClassScore, Denominator, SuiteScore, aggregate
from components.evaluation.suite import Suite, heldout, load_suite

__all__ = [
    "ClassScore",
    "Conditions",
    "Denominator",
    "RunAttempt",
    "Suite",
    "SuiteScore",
    "aggregate",
    "conditions_of",
    "evaluate",
    "heldout",
    "load_suite",
    "sampling_of",
    "under_profile",
    "walled",
]
