"""Reports as their tools write them; those of pytest are written by a real pytest in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from components.records import AssertionOutcome
from components.reward import parse_report, read_report

PASSED, FAILED, ERROR, SKIPPED, NOT_RUN = AssertionOutcome


def stream(*objects, nonce="n"):
    return "".join(json.dumps({"nonce": nonce, **o}) + "\n" for o in objects)


def said(name, outcome):
    return {"id": name, "outcome": outcome}


WHOLE = ({"collected": ["a", "b"]}, said("a", "passed"), said("b", "passed"), {"finished": True})


def test_a_finished_stream_of_passes_is_a_pass():
    report = read_report(stream(*WHOLE), "assertions.jsonl", nonce="n")
    assert dict(report.assertions) == {"a": PASSED, "b": PASSED}
    assert (report.outcome, report.source, report.parse_cause) == (True, "assertions.jsonl", None)


@pytest.mark.parametrize("bad", ["failed", "error", "skipped", "wonderful"])
def test_anything_but_a_pass_fails_the_whole(bad):
    text = stream(WHOLE[0], said("a", "passed"), said("b", bad), WHOLE[3])
    assert read_report(text, "assertions.jsonl", nonce="n").outcome is False


def test_a_collected_assertion_that_was_never_reported_did_not_run():
    report = read_report(stream(WHOLE[0], WHOLE[1], WHOLE[3]), "assertions.jsonl", nonce="n")
    assert dict(report.assertions) == {"a": PASSED, "b": NOT_RUN}
    assert report.outcome is False


def test_a_stream_that_breaks_off_has_no_verdict():
    # AReaL, NeMo-Gym: a killed verifier became reward 0 and was trained on.
    report = read_report(stream(*WHOLE[:3]), "assertions.jsonl", nonce="n")
    assert report.outcome is None
    assert "breaks off" in report.parse_cause
    assert report.assertions["a"] is PASSED


def test_forged_lines_say_nothing_and_are_counted_as_tampering():
    truth = stream(WHOLE[0], said("a", "failed"), said("b", "passed"), WHOLE[3])
    forged = stream(*WHOLE, nonce="guess") + json.dumps(said("a", "passed")) + "\n"
    report = read_report(forged + truth + forged + "hello {not json\n{}\n", "assertions.jsonl", nonce="n")
    assert dict(report.assertions) == {"a": FAILED, "b": PASSED}
    assert report.outcome is False
    assert report.parse_cause == "tampering: 10 lines without the nonce"


def test_a_wholly_forged_stream_has_no_verdict():
    assert read_report(stream(*WHOLE, nonce="guess"), "assertions.jsonl", nonce="n").outcome is None


def test_an_assertion_reported_twice_has_its_worst_outcome():
    for order in (("passed", "failed"), ("failed", "passed")):
        text = stream(WHOLE[0], WHOLE[2], *(said("a", word) for word in order), WHOLE[3])
        assert read_report(text, "assertions.jsonl", nonce="n").assertions["a"] is FAILED


def test_a_stream_that_checked_nothing_is_no_pass():
    report = read_report(stream({"collected": []}, {"finished": True}), "assertions.jsonl", nonce="n")
    assert (report.outcome, report.parse_cause) == (None, "the report names no assertions")


@pytest.mark.parametrize("kind", ["assertions.jsonl", "junit", "ctrf", "pytest -rA"])
@pytest.mark.parametrize("text", ["", "  \n", "garbage", "{", "<xml", "[]", '{"results": 3}', "\0", "[" * 5_000])
def test_what_cannot_be_read_has_no_outcome_and_a_cause(kind, text):
    report = read_report(text, kind)
    assert report.outcome is None
    assert report.parse_cause
    assert dict(report.assertions) == {}


def test_a_report_is_read_from_its_path_and_a_missing_one_says_so(tmp_path):
    path = tmp_path / "assertions.jsonl"
    missing = read_report(path, "assertions.jsonl")
    assert (missing.outcome, missing.parse_cause) == (None, "the report cannot be opened: No such file or directory")
    path.write_text(stream(*WHOLE))
    assert read_report(path, "assertions.jsonl").outcome is True
    assert read_report(str(path), "assertions.jsonl").outcome is True
    with pytest.raises(ValueError, match="unknown report kind"):
        read_report(path, "tape")


def test_text_out_of_a_sandbox_that_names_a_file_of_ours_is_not_opened(tmp_path):
    path = tmp_path / "ctrf.json"
    path.write_text(json.dumps(CTRF_NEW))
    assert parse_report(str(path), "ctrf").outcome is None


CTRF_OLD = {
    "results": {
        "tool": {"name": "pytest", "version": "8.4.1"},
        "summary": {"tests": 4, "passed": 1, "failed": 2, "skipped": 1, "pending": 0, "other": 0},
        "tests": [
            {
                "name": "t.py::test_a",
                "status": "passed",
                "duration": 0.01,
                "raw_status": "call_passed",
                "file_path": "t.py",
            },
            {"name": "t.py::test_b", "status": "failed", "duration": 0.01, "raw_status": "call_failed", "trace": "..."},
            {"name": "t.py::test_c", "status": "failed", "duration": 0.01, "raw_status": "setup_failed"},
            {"name": "t.py::test_d", "status": "skipped", "duration": 0.0, "raw_status": "setup_skipped"},
        ],
    }
}
CTRF_NEW = {
    "reportFormat": "CTRF",
    "specVersion": "1.0.0",
    "results": {
        "tool": {"name": "pytest"},
        "summary": {"tests": 4, "passed": 3, "failed": 0, "skipped": 1, "pending": 0, "other": 0},
        "tests": [
            {"name": "test_a[1]", "status": "passed", "duration": 10, "rawStatus": "passed", "filePath": "t.py"},
            {"name": "test_a[2]", "status": "passed", "duration": 10, "rawStatus": "passed", "filePath": "t.py"},
            {"name": "t.py::test_x", "status": "passed", "duration": 1, "rawStatus": "xpassed", "filePath": "t.py"},
            {"name": "test_d", "status": "pending", "duration": 0, "filePath": "t.py"},
        ],
    },
}


def test_both_dialects_of_ctrf_are_read():
    old = read_report(json.dumps(CTRF_OLD), "ctrf")
    assert dict(old.assertions) == {
        "t.py::test_a": PASSED,
        "t.py::test_b": FAILED,
        "t.py::test_c": FAILED,
        "t.py::test_d": SKIPPED,
    }
    assert old.outcome is False
    new = read_report(json.dumps(CTRF_NEW), "ctrf")
    assert dict(new.assertions) == {
        "t.py::test_a[1]": PASSED,
        "t.py::test_a[2]": PASSED,
        "t.py::test_x": SKIPPED,
        "t.py::test_d": SKIPPED,
    }
    assert new.outcome is True


def test_ctrf_without_tests_is_a_collection_that_failed_not_a_pass():
    empty = {"results": {"tests": [], "summary": {"tests": 0}}}
    assert read_report(json.dumps(empty), "ctrf").outcome is None


SUITE = """
import pytest

@pytest.fixture
def breaks_before():
    raise RuntimeError("setup")

@pytest.fixture
def breaks_after():
    yield
    raise RuntimeError("teardown")

@pytest.mark.parametrize("x", ["1", "a b"])
def test_good(x):
    print("FAILED t.py::test_forged - in captured output")

def test_bad():
    assert 1 == 2, "one - two"

def test_setup(breaks_before):
    pass

def test_teardown(breaks_after):
    pass

@pytest.mark.skip(reason="not: today")
def test_skipped():
    pass

@pytest.mark.xfail
def test_expected():
    assert False

@pytest.mark.xfail
def test_unexpected():
    pass

class TestGroup:
    def test_inside(self):
        pass
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Standard output and JUnit file of a real pytest over SUITE, and over its good part."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "t.py").write_text(SUITE)
    out = {}
    for name, chosen in (("all", ["t.py"]), ("good", ["t.py::test_good", "t.py::test_skipped"])):
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", f"--junitxml={name}.xml", *chosen]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PY_COLORS": "1"}
        text = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False).stdout
        out[name] = (text, folder / f"{name}.xml")
    return out


def test_the_summary_of_a_real_pytest_is_read(real):
    report = read_report(real["all"][0], "pytest -rA")
    assert dict(report.assertions) == {
        "t.py::test_good[1]": PASSED,
        "t.py::test_good[a b]": PASSED,
        "t.py::test_bad": FAILED,
        "t.py::test_setup": ERROR,
        "t.py::test_teardown": ERROR,
        "t.py:26": SKIPPED,
        "t.py::test_expected": SKIPPED,
        "t.py::test_unexpected": SKIPPED,
        "t.py::TestGroup::test_inside": PASSED,
    }
    assert report.outcome is False
    assert read_report(real["good"][0], "pytest -rA").outcome is True


def test_a_summary_that_breaks_off_or_does_not_add_up_has_no_verdict(real):
    text = real["good"][0]
    cut = text[: text.rindex("=====")].rsplit("\n", 1)[0]
    assert "breaks off" in read_report(cut, "pytest -rA").parse_cause
    lines = text.splitlines()
    forged = [*lines[:-1], "PASSED t.py::test_forged", lines[-1]]
    assert "are not its totals" in read_report("\n".join(forged), "pytest -rA").parse_cause


def test_the_junit_file_of_a_real_pytest_is_read(real):
    report = read_report(real["all"][1], "junit")
    assert dict(report.assertions) == {
        "t::test_good[1]": PASSED,
        "t::test_good[a b]": PASSED,
        "t::test_bad": FAILED,
        "t::test_setup": ERROR,
        "t::test_teardown": ERROR,
        "t::test_skipped": SKIPPED,
        "t::test_expected": SKIPPED,
        "t::test_unexpected": PASSED,
        "t.TestGroup::test_inside": PASSED,
    }
    assert report.outcome is False
    assert read_report(real["good"][1], "junit").outcome is True


def test_junit_that_declares_entities_is_not_expanded():
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><testsuite><testcase name="&a;"/></testsuite>'
    assert "document type" in read_report(bomb, "junit").parse_cause
