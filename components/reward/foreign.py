"""Reports of other test runners: JUnit XML, CTRF and the summary of `pytest -rA`.

Invariants: what is read is bounded; a report whose own totals tell of failures that it does not list is not read; an
assertion that is mentioned more than once (a test that passed and then broke in its teardown) has the worst outcome
said of it; expected failures and unexpected passes are skipped, not credited. The verdict is pytest's own: nothing
failed, and something passed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from components.records import AssertionOutcome, VerifierReport

PASSED, FAILED, ERROR, SKIPPED, NOT_RUN = AssertionOutcome

_SEVERITY = {PASSED: 0, SKIPPED: 1, NOT_RUN: 2, FAILED: 3, ERROR: 4}

_CTRF = {"passed": PASSED, "failed": FAILED, "skipped": SKIPPED, "pending": SKIPPED}
_WORDS = {"PASSED": PASSED, "FAILED": FAILED, "ERROR": ERROR, "SKIPPED": SKIPPED, "XFAIL": SKIPPED, "XPASS": SKIPPED}
_COUNTED = {
    "passed": "PASSED",
    "failed": "FAILED",
    "error": "ERROR",
    "errors": "ERROR",
    "skipped": "SKIPPED",
    "xfailed": "XFAIL",
    "xpassed": "XPASS",
}

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_HEADER = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_LINE = re.compile(rf"^({'|'.join(_WORDS)}) (?:\[(\d+)\] )?(.+)$", re.MULTILINE)
_TOTALS = re.compile(r"^=*\s?((?:\d+ [a-z ]+(?:, )?)+) in [\d.]+s\b.*$", re.MULTILINE)


MOST_ASSERTIONS = 20_000
NAME_CHARS = 500


class Unreadable(Exception):
    """The report is not what it is said to be; the message is the parse cause. Never leaves this package."""


def name_of(value: object) -> str:
    """The id of an assertion as text that can be stored. Two that become one have the worse of their outcomes."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")[:NAME_CHARS]


def worst(one: AssertionOutcome | None, other: AssertionOutcome) -> AssertionOutcome:
    """The worse of two outcomes of one assertion."""
    return other if one is None else max(one, other, key=_SEVERITY.__getitem__)


def read_junit(text: str) -> VerifierReport:
    """JUnit XML, of pytest or any other runner."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Unreadable("the XML declares a document type: entities are not expanded for a report")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise Unreadable(f"not XML: {error}") from error
    tags = (("error", ERROR), ("failure", FAILED), ("skipped", SKIPPED))
    broken = sum(_count(suite.get(name)) for suite in root.iter("testsuite") for name in ("failures", "errors"))
    broken += sum(suite.find(tag) is not None for suite in root.iter("testsuite") for tag in ("error", "failure"))
    return report_of(
        "junit",
        (
            (
                "::".join(filter(None, (case.get("classname"), case.get("name")))),
                next((outcome for tag, outcome in tags if case.find(tag) is not None), PASSED),
            )
            for case in root.iter("testcase")
        ),
        broken=broken,
    )


def read_ctrf(text: str) -> VerifierReport:
    """CTRF JSON of pytest-json-ctrf 0.3.5 (snake case) and from 0.6 on (camel case)."""
    try:
        results = json.loads(text)["results"]
        found = [(_ctrf_id(test), _ctrf_outcome(test)) for test in results["tests"]]
        return report_of("ctrf", found, broken=_count((results.get("summary") or {}).get("failed")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable(f"not CTRF: {type(error).__name__} {error}") from error


def _ctrf_id(test: dict[str, str]) -> str:
    name, path = test["name"], test.get("filePath") or test.get("file_path") or ""
    return name if not path or "::" in name else f"{path}::{name}"


def _ctrf_outcome(test: dict[str, str]) -> AssertionOutcome:
    raw = (test.get("rawStatus") or test.get("raw_status") or "").lower()
    return SKIPPED if "xpass" in raw or "xfail" in raw else _CTRF.get(test["status"], ERROR)


def read_pytest(text: str) -> VerifierReport:
    """The summary that `pytest -rA` prints last. Believed only when its lines add up to its own totals."""
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    headers = list(_HEADER.finditer(text))
    if not headers:
        raise Unreadable("no short test summary")
    summary = text[headers[-1].end() :]
    totals = list(_TOTALS.finditer(summary))
    if not totals:
        raise Unreadable("the summary breaks off before its totals")
    found: list[tuple[str, AssertionOutcome]] = []
    lines: Counter[str] = Counter()
    for word, several, rest in _LINE.findall(summary[: totals[-1].start()]):
        lines[word] += int(several or 1)
        ends = {"PASSED": "\n", "SKIPPED": ": "}.get(word, " - ")  # what parts the id from the message
        found.append((rest.partition(ends)[0], _WORDS[word]))
    counted = re.findall(r"(\d+) ([a-z ]+)", totals[-1][1])
    said = Counter({_COUNTED[word]: int(number) for number, word in counted if word in _COUNTED})
    if said != lines:
        raise Unreadable(f"the summary's lines {dict(lines)} are not its totals {dict(said)}")
    return report_of("pytest -rA", found)


def _count(value: object) -> int:
    """A total of the report's own; 0 where it is none."""
    return int(value) if isinstance(value, int | str) and str(value)[:9].isdecimal() else 0


def gathered(found: Iterable[tuple[object, AssertionOutcome]]) -> dict[str, AssertionOutcome]:
    """Outcomes by id; of one that is mentioned more than once the worst."""
    assertions: dict[str, AssertionOutcome] = {}
    for value, outcome in found:
        name = name_of(value)
        assertions[name] = worst(assertions.get(name), outcome)
        if len(assertions) > MOST_ASSERTIONS:
            raise Unreadable(f"the report names more than {MOST_ASSERTIONS} assertions")
    return assertions


def passes(assertions: Mapping[str, AssertionOutcome]) -> bool:
    """The verdict of a test runner: nothing failed, and something passed."""
    said = set(assertions.values())
    return PASSED in said and said <= {PASSED, SKIPPED}


def report_of(source: str, found: Iterable[tuple[object, AssertionOutcome]], *, broken: int = 0) -> VerifierReport:
    """A finished report. `broken`: how many failures it says there were."""
    assertions = gathered(found)
    if not assertions:
        raise Unreadable("the report names no assertions")
    if broken and not {FAILED, ERROR} & set(assertions.values()):
        raise Unreadable(f"the report counts {broken} failures and lists none")
    return VerifierReport(assertions, passes(assertions), source)
