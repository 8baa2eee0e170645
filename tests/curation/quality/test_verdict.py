"""Verdicts against a table that was computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from components.config import AuditConfig
from components.curation import Flag, GateResult
from components.curation.quality import Assessment, Verdict, decide, repairable
from components.curation.quality.answer import read_opinion
from tests.curation.scripted_judge import opinion

CONFIG = AuditConfig.model_validate({"judge": {"base_url": "http://localhost/v1", "model": "m"}})
# Weights, in this order: .20 .15 .10 (verifier), .15 .10 (solution), .10 .10 (instruction), .10 (value).
SOUND = [1, 1, 0.8, 1, 0.9, 0.9, 0.8, 0.5]  # .20+.15+.08+.15+.09+.09+.08+.05
BORDER = [0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.9]  # .9*.7+.09
TABLE = [
    # scores, score, verdict, cause, whether a better instruction could help
    (SOUND, 0.89, "accepted", "", False),
    ([0.8] * 8, 0.8, "accepted", "", False),
    ([1] * 7 + [0], 0.9, "accepted", "", False),
    ([1, 1, 0.6, 1, 1, 1, 1, 1], 0.96, "accepted", "", False),
    ([1, 1, 0.59, 1, 1, 1, 1, 1], 0.959, "rejected", "critical_minimum", False),
    ([0.5, 1, 1, 1, 1, 1, 1, 1], 0.9, "rejected", "critical_minimum", True),
    (BORDER, 0.72, "borderline", "borderline", True),  # .55+.07+.105+.07+.09 = .885 with a perfect instruction
    ([0.6] * 8, 0.6, "rejected", "low_score", True),  # .55+.27 = .82
    ([0.6] * 7 + [0.3], 0.57, "rejected", "low_score", False),  # .55+.21+.03 = .79
    ([0.65] * 8, 0.65, "borderline", "borderline", True),
]


def verdict(*answers: str, evidence: GateResult | None = None, probed: bool = False) -> Assessment:
    return decide("t", "d", [read_opinion(answer) for answer in answers], CONFIG, evidence, probed)


@pytest.mark.parametrize(("scores", "score", "expected", "cause", "mendable"), TABLE)
def test_the_table(scores: list[float], score: float, expected: str, cause: str, mendable: bool) -> None:
    found = verdict(opinion(scores))
    assert (found.score, found.verdict, found.cause) == (score, expected, cause)
    assert repairable(found, CONFIG) is mendable
    assert bool(found.reason) == (expected != "accepted")


def test_medians_count_and_the_spread_is_told() -> None:
    found = verdict(opinion(0.2), opinion(0.9), opinion(1))
    assert (found.score, found.verdict) == (0.9, Verdict.ACCEPTED)
    assert set(found.spread.values()) == {0.8}


@pytest.mark.parametrize(
    ("reject", "mendable"),
    [
        ("hidden_requirements", True),
        ("test_leakage", False),
        ("solution_shortcut", False),
        ("weak_verifier", False),
    ],
)
def test_a_hard_reject_that_most_opinions_name_outranks_every_score(reject: str, mendable: bool) -> None:
    named, silent = opinion(1, **{reject: "line 3 says so"}), opinion(1)
    found = verdict(silent, named, named)
    assert (found.verdict, found.cause, found.score) == (Verdict.REJECTED, reject, 1.0)
    assert found.reason == f"{reject}, by 2 of 3: line 3 says so"
    assert repairable(found, CONFIG) is mendable
    found = verdict(named, silent, silent)
    assert (found.verdict, found.contested, found.hard_rejects) == (Verdict.ACCEPTED, (reject,), {})


def test_a_reason_has_the_number_the_limit_and_the_judges_words() -> None:
    assert verdict(opinion([1, 1, 0.5, 1, 0.4, 1, 1, 1])).reason == (
        "verifier_coverage 0.50 is below 0.6: verifier_coverage is like that; "
        "solution_reasonableness 0.40 is below 0.6: solution_reasonableness is like that"
    )
    assert verdict(opinion(BORDER)).reason.startswith("score 0.720 is below 0.8; instruction_verifier_alignment: ")


def test_a_judge_that_contradicts_what_was_executed_is_told() -> None:
    evidence = GateResult("t", "d", None, assertion_ids=tuple("abcd"), fail_to_pass=("a",), pass_to_pass=tuple("bcd"))
    said = verdict(opinion([1, 1, 1, 0.2, 1, 1, 1, 1]), evidence=evidence).disagreements
    assert said == (
        "solution_correctness 0.20, yet the solution passed all 4 assertions in every run",
        "verifier_coverage 1.00, yet 3 of 4 assertions pass untouched",
    )
    assert verdict(opinion([1, 1, 0.7, 0.9, 1, 1, 1, 1]), evidence=evidence).disagreements == ()


def test_probes_that_found_nothing_and_flags_contradict_a_judge_too() -> None:
    clean = GateResult("t", "d", None, assertion_ids=("a",), fail_to_pass=("a",))
    named = opinion(0.9, solution_shortcut="test.sh: an empty file will do")
    said = verdict(named, evidence=clean, probed=True).disagreements
    assert said == ("solution_shortcut, yet nothing of the kind was found by trying",)
    assert verdict(named, evidence=clean).disagreements == ()
    unprobed = replace(clean, flags=(Flag("unprobed", "no time"),))
    assert verdict(named, evidence=unprobed, probed=True).disagreements == ()
    flagged = replace(clean, flags=(Flag("weak_verifier", "without `sort`"), Flag("hidden_requirement", "out.txt")))
    assert verdict(opinion(0.9), evidence=flagged, probed=True).disagreements == (
        "verifier_coverage 0.90, yet execution showed: without `sort`",
        "instruction_verifier_alignment 0.90, yet execution showed: out.txt",
    )
    assert verdict(opinion(0.7), evidence=flagged, probed=True).disagreements == ()


def test_an_assessment_survives_json() -> None:
    found = verdict(opinion(0.5, weak_verifier="x"), opinion(0.6), opinion(0.7))
    assert Assessment.from_json(json.loads(json.dumps(found.to_json()))) == found
