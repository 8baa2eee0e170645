"""What becomes of a task by several opinions: medians, the weighted score, and a reason that a person can check.

A task is rejected when most opinions name one hard reject, or when its median in a critical dimension is below the
critical minimum; otherwise its weighted score decides. What was executed outranks what was read: where the opinions
contradict it, that is told beside the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from statistics import median
from typing import Any

from components.config import AuditConfig
from components.curation.quality.answer import Opinion
from components.curation.quality.rubric import (
    CRITICAL,
    REPAIRABLE,
    REPAIRABLE_REJECTS,
    WEIGHTS,
    Dimension,
    HardReject,
)
from components.curation.result import UNPROBED, GateResult, Rejection

DIGITS = 9
"""Scores are compared with thresholds after rounding, so that eight times 0.8 is 0.8."""
TOUCHED = 0.5
"""Share of assertions that may pass untouched before a judge's praise of the coverage contradicts it."""


CRITICAL_MINIMUM, LOW_SCORE, BORDERLINE, UNJUDGED = "critical_minimum", "low_score", "borderline", "unjudged"

FLAGGED = {Rejection.WEAK_VERIFIER: Dimension.COVERAGE, Rejection.HIDDEN_REQUIREMENT: Dimension.ALIGNMENT}
"""The dimension that a flag of this kind speaks against."""
PROBED = {
    HardReject.TEST_LEAKAGE: Rejection.LEAK,
    HardReject.SOLUTION_SHORTCUT: Rejection.SHORTCUT,
    HardReject.WEAK_VERIFIER: Rejection.WEAK_VERIFIER,
}
"""What the probes look for, as the judge calls it and as they do."""


class Verdict(StrEnum):
    """What the audit says of a task."""

    ACCEPTED = "accepted"
    BORDERLINE = "borderline"
    REJECTED = "rejected"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Assessment:
    """The audit of one version of one task.

    Attributes:
        score: the weighted sum of the medians; None for an unjudged task.
        scores, spread: of each dimension the median, and greatest minus least opinion.
        hard_rejects: those that most opinions name, with the words of the first that does.
        contested: hard rejects that some opinions name, and not most.
        disagreements: where opinions contradict what was executed.
        cause: in one word why it is not accepted: a hard reject, `critical_minimum`, `low_score`, `borderline`,
            `contaminated` or `unjudged`; empty for an accepted task.
        reason: the same in the judge's words.
    """

    task_id: str
    digest: str
    verdict: Verdict
    score: float | None = None
    scores: Mapping[str, float] | None = None
    spread: Mapping[str, float] | None = None
    hard_rejects: Mapping[str, str] | None = None
    contested: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    cause: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Assessment:
        """Raises KeyError or ValueError when `document` is not one."""
        values = {f.name: document[f.name] for f in fields(cls)}
        for name in ("contested", "disagreements"):
            values[name] = tuple(values[name])
        return cls(**{**values, "verdict": Verdict(values["verdict"])})


def decide(
    task_id: str,
    digest: str,
    opinions: Sequence[Opinion],
    config: AuditConfig,
    evidence: GateResult | None = None,
    probed: bool = False,
) -> Assessment:
    """The verdict of an odd number of opinions, on a task that the gates accepted with this evidence."""
    scores = {name: median(opinion.scores[name] for opinion in opinions) for name in Dimension}
    spread = {
        name: round(max(o.scores[name] for o in opinions) - min(o.scores[name] for o in opinions), DIGITS)
        for name in Dimension
    }
    named = {reject: [o.rejects[reject] for o in opinions if reject in o.rejects] for reject in HardReject}
    hard = {reject: words[0] for reject, words in named.items() if 2 * len(words) > len(opinions)}
    score = weighted(scores)
    below = [name for name in Dimension if name in CRITICAL and scores[name] < config.critical_minimum]
    verdict = _verdict(score, hard, below, config)
    reasons = [f"{reject}, by {len(named[reject])} of {len(opinions)}: {words}" for reject, words in hard.items()]
    reasons += [
        f"{name} {scores[name]:.2f} is below {config.critical_minimum:g}: {_why(opinions, name, scores[name])}"
        for name in below
    ]
    if not reasons and verdict is not Verdict.ACCEPTED:
        worst = min(Dimension, key=lambda name: WEIGHTS[name] * (scores[name] - 1))
        reasons = [f"score {score:.3f} is below {config.accept:g}; {worst}: {_why(opinions, worst, scores[worst])}"]
    return Assessment(
        task_id,
        digest,
        verdict,
        score,
        {str(name): value for name, value in scores.items()},
        {str(name): value for name, value in spread.items()},
        {str(name): words for name, words in hard.items()},
        tuple(str(reject) for reject, words in named.items() if words and reject not in hard),
        tuple(_disagreements(scores, hard, evidence, probed, config)) if evidence is not None else (),
        _cause(verdict, hard, below),
        "; ".join(reasons),
    )


def weighted(scores: Mapping[Dimension, float]) -> float:
    """Σ weight · score, from 0 to 1."""
    return round(sum(WEIGHTS[name] * scores[name] for name in Dimension) / 100, DIGITS)


def repairable(assessment: Assessment, config: AuditConfig) -> bool:
    """Whether a perfect instruction would make the task accepted, everything else staying as it is."""
    if assessment.verdict not in (Verdict.BORDERLINE, Verdict.REJECTED):
        return False
    assert assessment.scores is not None
    assert assessment.hard_rejects is not None
    best = {name: 1.0 if name in REPAIRABLE else assessment.scores[name] for name in Dimension}
    hopeless = [reject for reject in assessment.hard_rejects if reject not in REPAIRABLE_REJECTS]
    return _verdict(weighted(best), hopeless, [n for n in CRITICAL if best[n] < config.critical_minimum], config) is (
        Verdict.ACCEPTED
    )


def _verdict(score: float, hard: Any, below: Any, config: AuditConfig) -> Verdict:
    if hard or below or score < config.borderline:
        return Verdict.REJECTED
    return Verdict.ACCEPTED if score >= config.accept else Verdict.BORDERLINE


def _cause(verdict: Verdict, hard: Mapping[HardReject, str], below: Sequence[Dimension]) -> str:
    if verdict in (Verdict.ACCEPTED, Verdict.BORDERLINE):
        return BORDERLINE if verdict is Verdict.BORDERLINE else ""
    return str(next(iter(hard))) if hard else CRITICAL_MINIMUM if below else LOW_SCORE


def _why(opinions: Sequence[Opinion], name: Dimension, score: float) -> str:
    """The words of the opinion nearest to the median."""
    return min(opinions, key=lambda opinion: abs(opinion.scores[name] - score)).whys[name]


def _disagreements(
    scores: Mapping[Dimension, float],
    hard: Mapping[HardReject, str],
    evidence: GateResult,
    probed: bool,
    config: AuditConfig,
) -> list[str]:
    found = []
    total, before = len(evidence.assertion_ids), len(evidence.pass_to_pass)
    if (said := scores[Dimension.CORRECTNESS]) < config.critical_minimum:
        found.append(f"{Dimension.CORRECTNESS} {said:.2f}, yet the solution passed all {total} assertions in every run")
    if (said := scores[Dimension.COVERAGE]) >= config.accept and before > TOUCHED * total:
        found.append(f"{Dimension.COVERAGE} {said:.2f}, yet {before} of {total} assertions pass untouched")
    flagged = {flag.kind: flag.detail for flag in reversed(evidence.flags)}
    for kind, dimension in FLAGGED.items():
        if kind in flagged and (said := scores[dimension]) >= config.accept:
            found.append(f"{dimension} {said:.2f}, yet execution showed: {flagged[kind]}")
    if probed and UNPROBED not in flagged:
        found += [
            f"{reject}, yet nothing of the kind was found by trying"
            for reject, kind in PROBED.items()
            if reject in hard and kind not in flagged
        ]
    return found
