"""Verdicts without assertions: what a script writes for Harbor, and the code it exits with.

Invariant: a number that is not finite, or none at all, is no verdict.
"""

from __future__ import annotations

import json
import math

from components.records import VerifierReport
from components.reward.foreign import Unreadable

SOLVED = 1.0
"""The least reward that says a task is solved."""


def read_reward_text(text: str) -> VerifierReport:
    """`reward.txt`: one number."""
    try:
        return _verdict(float(text), "reward.txt")
    except ValueError as error:
        raise Unreadable(f"not a number: {text.strip()[:80]!r}") from error


def read_reward_json(text: str) -> VerifierReport:
    """`reward.json`: an object of numbers. The one named "reward" counts, or the only one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise Unreadable("not an object of numbers")
    value = document.get("reward", next(iter(document.values())) if len(document) == 1 else None)
    if not isinstance(value, int | float):
        raise Unreadable("no number named reward")
    try:
        return _verdict(float(value), "reward.json")
    except OverflowError as error:
        raise Unreadable("not a finite number") from error


def read_exit_code(text: str) -> VerifierReport:
    """The exit code of a script that writes nothing: 0 is a pass, 1 is none, everything else is no verdict."""
    if text.strip() not in ("0", "1"):
        raise Unreadable(f"exit code {text.strip()[:20]} says that the script broke")
    return VerifierReport({}, text.strip() == "0", "exit code")


def _verdict(value: float, source: str) -> VerifierReport:
    if not math.isfinite(value):
        raise Unreadable("not a finite number")
    return VerifierReport({}, value >= SOLVED, source, number=value)
