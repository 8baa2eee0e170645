"""Evaluation: running held-out tasks and scoring what came of them."""

from components.evaluation.runner import RunAttempt, evaluate, sampling_of
from components.evaluation.score import ClassScore, SuiteScore, aggregate

__all__ = ["ClassScore", "RunAttempt", "SuiteScore", "aggregate", "evaluate", "sampling_of"]
