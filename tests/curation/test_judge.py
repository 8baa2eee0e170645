"""The verdict on evidence, without running anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.curation import Evidence, GateResult, Refused, Rejection, judge
from components.records import AssertionOutcome

PASSED, FAILED = AssertionOutcome.PASSED, AssertionOutcome.FAILED
SOLVED = {"a": PASSED, "b": PASSED}


def rejection(evidence: Evidence, declared: tuple[str, ...] = ()) -> Rejection:
    with pytest.raises(Refused) as caught:
        judge(evidence, declared)
    return caught.value.rejection


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.sampled_from(list(AssertionOutcome)), min_size=1))
def test_fail_to_pass_and_pass_to_pass_divide_the_assertions(noop: dict[str, AssertionOutcome]) -> None:
    evidence = Evidence([noop], [dict.fromkeys(noop, PASSED)])
    if set(noop.values()) == {PASSED}:
        assert rejection(evidence) is Rejection.NOOP_PASSES
        return
    ids, fail_to_pass, pass_to_pass = judge(evidence)
    assert sorted([*fail_to_pass, *pass_to_pass]) == sorted(ids) == sorted(noop)
    assert all(noop[id_] is not PASSED for id_ in fail_to_pass)


def test_runs_that_disagree_are_flaky() -> None:
    assert rejection(Evidence([{"a": FAILED, "b": PASSED}, SOLVED], [SOLVED])) is Rejection.FLAKY
    assert rejection(Evidence([{"a": FAILED}], [SOLVED])) is Rejection.FLAKY


def test_a_report_that_differs_from_what_was_declared_is_refused() -> None:
    evidence = Evidence([{"a": FAILED, "b": PASSED}], [SOLVED])
    assert rejection(evidence, ("a",)) is Rejection.UNDECLARED
    assert judge(evidence, ("b", "a")) == (("a", "b"), ("a",), ("b",))


def test_a_result_survives_json() -> None:
    result = GateResult("t", "d", Rejection.BUILD, "why", ("a",), ("a",), (), 0.5)
    assert GateResult.from_json(result.to_json()) == result
