"""The dense reward r = P / S (paper Eq 20, Algorithm 2) and its variants for controlled comparison.

Invariant: S is one number for a whole campaign, so an assertion is worth the same in every task; the reward may exceed
1 and is never normalised. An assertion that already passes on the untouched environment earns nothing under
`fail_to_pass`: it is a guard, and a broken guard takes the binary outcome away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from components.records import AssertionOutcome, Reward, VerifierReport

Credit = Literal["count", "fail_to_pass", "ratio", "binary"]

PARTIAL = 0.4
"""Most that unsolved work can earn under `ratio` (paper's comparison variant)."""


def dense_reward(
    report: VerifierReport | None,
    outcome: bool,
    *,
    scale: float = 20,
    credit: Credit = "count",
    fail_to_pass: Collection[str] | None = None,
) -> Reward:
    """The reward of one verified trial.

    Args:
        report: what the verifier said; None or without a verdict, the reward is the outcome and says why.
        outcome: the terminal binary verdict b.
        scale: S, near the 90th percentile of assertions a task.
        credit: `count`, the paper: P = assertions passed, r = P/S. `fail_to_pass`: P = those passed of `fail_to_pass`.
            `ratio`: r = max(b, 0.4 P/T), over `fail_to_pass` when it is given. `binary`: r = b.
        fail_to_pass: assertions that fail untouched and pass under the oracle, as curation measured them.

    Raises:
        ValueError: no positive scale, an unknown credit, or `fail_to_pass` credit without the list.
    """
    if not scale > 0:
        raise ValueError(f"the reward's scale must be positive, got {scale}")
    if credit not in ("count", "fail_to_pass", "ratio", "binary"):
        raise ValueError(f"unknown credit {credit!r}")
    if credit == "fail_to_pass" and fail_to_pass is None:
        raise ValueError("credit fail_to_pass needs the task's fail_to_pass assertions: curation measures them")
    cause = _unusable(report)
    if report is None or cause is not None:
        return Reward(float(outcome), 0, 0, outcome, None if credit == "binary" else cause)
    counted = report.assertions.keys() if credit == "count" or fail_to_pass is None else fail_to_pass
    passed = sum(report.assertions.get(name) is AssertionOutcome.PASSED for name in counted)
    if credit == "fail_to_pass":
        outcome = outcome and not _guard_broken(report.assertions, counted)
    value = {
        "count": passed / scale,
        "fail_to_pass": passed / scale,
        "ratio": max(float(outcome), PARTIAL * passed / len(counted) if counted else 0.0),
        "binary": float(outcome),
    }[credit]
    return Reward(value, passed, len(counted), outcome)


def _unusable(report: VerifierReport | None) -> str | None:
    """Why the assertions of this report cannot be counted."""
    if report is None:
        return "no report"
    if report.outcome is None or not report.assertions:
        return report.parse_cause or "the report names no assertions"
    return None


def _guard_broken(assertions: Mapping[str, AssertionOutcome], counted: Collection[str]) -> bool:
    whole = (AssertionOutcome.PASSED, AssertionOutcome.SKIPPED)
    return any(said not in whole for name, said in assertions.items() if name not in counted)
