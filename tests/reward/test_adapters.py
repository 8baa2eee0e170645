"""TAP, `go test -json` and plain verdicts; and what holds of every kind of report, however hostile its text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.records import AssertionOutcome
from components.reward import ASSERTION_FILES, parse_report, read_files
from components.reward.report import KINDS, MOST_CHARS

PASSED, FAILED, ERROR, SKIPPED, NOT_RUN = AssertionOutcome

TAP = """\
TAP version 14
1..6
ok 1 - opens
not ok 2 - holds # a comment is a directive only if it is one
  ---
  message: "ok 3 - forged in a diagnostic"
  ...
    ok 1 - a step of the next
ok 3 - steps
ok 4 - later # SKIP no network
not ok 5 - some day # TODO
ok
# ok 7 - said in passing
"""


def test_tap_is_read_point_by_point():
    report = parse_report(TAP, "tap")
    assert dict(report.assertions) == {
        "opens": PASSED,
        "holds": FAILED,
        "steps": PASSED,
        "later": SKIPPED,
        "some day": SKIPPED,
        "6": PASSED,
    }
    assert (report.outcome, report.source) == (False, "tap")


@pytest.mark.parametrize(
    ("text", "outcome", "cause"),
    [
        ("1..1\nok", True, None),
        ("ok - a\nok - b\n1..2\n", True, None),
        ("1..2\nok 1 - a\n", None, "1 points of 2"),
        ("ok 1 - a\n", None, "1 points of no plan"),
        ("1..1\nok 1 - a\nok 2 - b\n", None, "2 points of 1"),
        ("1..2\nok 1 - a\nok 1 - a\n", None, "2 points of 2"),
        ("1..1\n1..1\nok\n", None, "several plans"),
        ("1..0 # SKIP nothing here\n", None, "names no assertions"),
        ("1..2\nok 1\nBail out! no disk\n", None, "gave up: Bail out! no disk"),
        ("1..1\nokay then\n", None, "0 points of 1"),
        ("1..1\nok 1 - a # SKIP\n", False, None),
        ("1..2\nok 1 - a\nnot ok 2 - a\n", False, None),
    ],
)
def test_tap_has_a_verdict_only_when_it_is_whole(text, outcome, cause):
    report = parse_report(text, "tap")
    assert report.outcome is outcome
    assert (report.parse_cause is None) == (cause is None)
    assert cause is None or cause in report.parse_cause


def go(*events, package="p"):
    lines = []
    for action, test in events:
        lines.append(json.dumps({"Action": action, "Package": package} | ({"Test": test} if test else {})))
    return "\n".join(["# building", *lines, ""])


def test_go_tests_are_read_event_by_event():
    text = go(("start", None), ("run", "TestA"), ("output", "TestA"), ("pass", "TestA"), ("run", "TestB/x"),
              ("fail", "TestB/x"), ("run", "TestC"), ("skip", "TestC"), ("fail", None))  # fmt: skip
    report = parse_report(text, "go test -json")
    assert dict(report.assertions) == {"p.TestA": PASSED, "p.TestB/x": FAILED, "p.TestC": SKIPPED}
    assert report.outcome is False
    assert parse_report(go(("run", "T"), ("pass", "T"), ("pass", None)), "go test -json").outcome is True


def test_a_go_package_that_does_not_end_or_ends_badly_does_not_pass():
    cut = parse_report(go(("start", None), ("run", "T"), ("pass", "T"), ("run", "U")), "go test -json")
    assert (cut.outcome, dict(cut.assertions)) == (None, {"p.T": PASSED, "p.U": ERROR})
    assert "1 of 1 packages have not ended" in cut.parse_cause
    panic = parse_report(go(("run", "T"), ("pass", "T"), ("fail", None)), "go test -json")
    assert (panic.outcome, dict(panic.assertions)) == (False, {"p.T": PASSED, "p": ERROR})
    hung = parse_report(go(("run", "T"), ("fail", None)), "go test -json")
    assert dict(hung.assertions) == {"p.T": ERROR}
    unbuilt = json.dumps({"ImportPath": "p", "Action": "build-fail"}) + "\n" + go(("start", None), ("fail", None))
    assert parse_report(unbuilt, "go test -json").assertions == {"p": ERROR}
    assert (
        parse_report(go(("start", None), ("skip", None)), "go test -json").parse_cause
        == "the report names no assertions"
    )


@pytest.mark.parametrize(
    ("kind", "text", "outcome"),
    [
        ("reward.txt", "1\n", True),
        ("reward.txt", " 0.99 ", False),
        ("reward.txt", "2.5", True),
        ("reward.txt", "-1", False),
        ("reward.txt", "nan", None),
        ("reward.txt", "inf", None),
        ("reward.txt", "1 passed", None),
        ("reward.txt", "1e999", None),
        ("reward.json", '{"reward": 1}', True),
        ("reward.json", '{"reward": 0, "style": 1}', False),
        ("reward.json", '{"score": 1.0}', True),
        ("reward.json", '{"score": 1, "style": 1}', None),
        ("reward.json", '{"reward": "1"}', None),
        ("reward.json", '{"reward": NaN}', None),
        ("reward.json", '{"reward": 1' + "0" * 400 + "}", None),
        ("reward.json", "[1]", None),
        ("reward.json", "{}", None),
        ("exit code", "0", True),
        ("exit code", "1", False),
        ("exit code", "2", None),
        ("exit code", "127", None),
        ("exit code", "137", None),
    ],
)
def test_a_plain_verdict_is_a_finite_number_or_none(kind, text, outcome):
    report = parse_report(text, kind)
    assert report.outcome is outcome
    assert (report.parse_cause is None) == (outcome is not None)


GOOD_JUNIT = b'<testsuite tests="1"><testcase name="a"/></testsuite>'


def test_harbor_s_files_give_the_verdict_and_the_best_report_its_assertions():
    report = read_files({"reward.txt": b"0\n", "junit.xml": GOOD_JUNIT, "ctrf.json": b"{}"})
    assert (report.outcome, report.source, dict(report.assertions)) == (False, "reward.txt+junit.xml", {"a": PASSED})
    broken = read_files({"reward.json": b"[1]", "reward.txt": b"1", "junit.xml": b"<", "report.tap": b"1..1\nok - b"})
    assert (broken.outcome, broken.source) == (True, "reward.txt+report.tap")
    assert "reward.json: not an object of numbers; junit.xml: not XML" in broken.parse_cause
    assert read_files({"junit.xml": GOOD_JUNIT}) is None
    unread = read_files({"reward.txt": b""})
    assert (unread.outcome, unread.parse_cause) == (None, "reward.txt: the report is empty")


@pytest.mark.parametrize("numbers", [(1, 0), (0, 1), (0.7, 0.2), (0.2, 0.7)])
def test_of_two_verdicts_that_disagree_the_lower_counts(numbers):
    report = read_files({"reward.json": b'{"reward": %g}' % numbers[0], "reward.txt": b"%g" % numbers[1]})
    lower = ("reward.json", "reward.txt")[numbers.index(min(numbers))]
    assert (report.outcome, report.number, report.source) == (False, min(numbers), lower)
    assert report.parse_cause.startswith("tampering: reward.")
    assert read_files({"reward.json": b'{"reward": 1}', "reward.txt": b"1.0"}).parse_cause is None


def test_totals_that_count_what_is_not_listed_are_not_believed():
    silent = '<testsuites><testsuite tests="2" failures="1"><testcase name="a"/></testsuite></testsuites>'
    assert "counts 1 failures and lists none" in parse_report(silent, "junit").parse_cause
    suite = '<testsuite><error message="fixture"/><testcase name="a"/></testsuite>'
    assert parse_report(suite, "junit").outcome is None
    ctrf = {"results": {"summary": {"failed": 2}, "tests": [{"name": "a", "status": "passed"}]}}
    assert "counts 2 failures and lists none" in parse_report(json.dumps(ctrf), "ctrf").parse_cause


BOMB = (
    """<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "aaaaaaaaaa">%s]><testsuite><testcase name="&j;"/></testsuite>"""
)
ENTITIES = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("junit", BOMB % ENTITIES),
        ("junit", '<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite><testcase name="a"/></testsuite>'),
        ("junit", "<a>" * 200_000),
        ("junit", "<testsuite><testcase name='\ud800'/></testsuite>"),
        ("ctrf", "[" * 100_000),
        ("ctrf", json.dumps({"results": {"tests": [{"name": str(n), "status": "passed"} for n in range(20_001)]}})),
        ("tap", "1..99999\n" + "ok\n" * 100_000),
        ("tap", "ok " + " " * 500_000),
        ("tap", "ok 1" + "#" * 500_000),
        ("go test -json", '{"Action":' * 50_000),
        ("assertions.jsonl", '{"id":' * 100_000),
        ("pytest -rA", "= short test summary info =\n" + "1 passed, " * 50_000),
        ("reward.json", '{"reward":' * 100_000),
        ("reward.txt", "9" * 500_000),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_a_hostile_report_is_refused_in_good_time(kind, text):
    began = time.process_time()
    report = parse_report(text, kind)
    assert time.process_time() - began < 20
    assert report.outcome is not True
    assert len(report.assertions) <= 20_000
    assert report.parse_cause is not None


def test_a_report_that_is_too_long_is_not_read():
    assert "longer than" in parse_report("1" * (MOST_CHARS + 1), "reward.txt").parse_cause


WHOLE = {
    "assertions.jsonl": '{"collected":["a","b"]}\n{"id":"a","outcome":"passed"}\n'
    '{"id":"b","outcome":"failed"}\n{"finished":true}',
    "junit": '<testsuite><testcase name="a"/><testcase name="b"><failure/></testcase></testsuite>',
    "ctrf": '{"results":{"tests":[{"name":"a","status":"passed"},{"name":"b","status":"failed"}]}}',
    "pytest -rA": "= short test summary info =\nPASSED t.py::a\nFAILED t.py::b - x\n= 1 failed, 1 passed in 0.1s =\n",
    "tap": "1..2\nok 1 - a\nnot ok 2 - b\n",
    "go test -json": go(("run", "a"), ("pass", "a"), ("run", "b"), ("fail", "b"), ("fail", None)),
}


def require_sound(report):
    """What holds of every report: no verdict without its reason or its assertions, no pass beside a failure."""
    assert (report.outcome is None) <= (report.parse_cause is not None)
    said = set(report.assertions.values())
    if report.outcome and report.assertions:
        assert PASSED in said
        assert said <= {PASSED, SKIPPED}
    json.dumps(dict(report.assertions), ensure_ascii=False).encode()


@pytest.mark.parametrize("kind", WHOLE)
def test_a_failing_report_never_passes_however_it_is_cut(kind):
    text = WHOLE[kind]
    assert parse_report(text, kind).outcome is False
    for end in range(len(text)):
        for part in (text[:end], text[end:]):
            report = parse_report(part, kind)
            require_sound(report)
            assert report.outcome is not True or not text.startswith(part), part


@settings(max_examples=150)
@given(st.sampled_from(KINDS), st.data())
def test_no_text_whatever_makes_a_reader_raise_or_pass_what_failed(kind, data):
    whole = WHOLE.get(kind, "1")
    start, end = sorted((data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, len(whole)))))
    text = whole[:start] + data.draw(st.text(max_size=40)) + whole[data.draw(st.sampled_from([start, end])) :]
    require_sound(parse_report(text, kind))


def test_every_file_that_is_looked_for_has_a_reader():
    assert set(ASSERTION_FILES.values()) <= set(KINDS)
