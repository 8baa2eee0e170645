"""Reads a verifier's report, whatever wrote it.

Invariant: what cannot be read, or was not finished, has no outcome and says why; it is never a failure of the policy.
Kinds in the order in which they are to be trusted: our own streamed lines, JUnit, CTRF from 0.6, CTRF 0.3.5 (collapses
parametrised tests: a floor), TAP, `go test -json`, `pytest -rA` (text for people); then those that have a verdict only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from components.records import VerifierReport
from components.reward.foreign import Unreadable, read_ctrf, read_junit, read_pytest
from components.reward.lines import read_go, read_tap
from components.reward.plain import read_exit_code, read_reward_json, read_reward_text
from components.reward.stream import read_stream

_FOREIGN: dict[str, Callable[[str], VerifierReport]] = {
    "junit": read_junit,
    "ctrf": read_ctrf,
    "pytest -rA": read_pytest,
    "pytest": read_pytest,
    "tap": read_tap,
    "go test -json": read_go,
    "reward.json": read_reward_json,
    "reward.txt": read_reward_text,
    "exit code": read_exit_code,
}

KINDS = ("assertions.jsonl", *_FOREIGN)
MOST_CHARS = 8 << 20
"""A longer report is not read: parsing it would hold up every trial that is graded meanwhile."""

ASSERTION_FILES = {
    "assertions.jsonl": "assertions.jsonl",
    "junit.xml": "junit",
    "ctrf.json": "ctrf",
    "report.tap": "tap",
    "go-test.json": "go test -json",
}
"""Files that a verifier may leave in its log folder, the most trusted first, with their kinds."""
VERDICT_FILES = ("reward.json", "reward.txt")
"""What Harbor reads, in its order."""


def read_report(path_or_text: Path | str, kind: str, *, nonce: str | None = None) -> VerifierReport:
    """The report at a path, or in a text. A string that names a file on this machine is a path.

    For text that comes out of a sandbox use `parse_report`: an agent could write the name of a file of ours.

    Args:
        path_or_text: a path, or the report itself.
        kind: one of `KINDS`.
        nonce: for "assertions.jsonl", the secret that every true line carries. Other lines are ignored, and those that
            pose as report lines are named in `parse_cause` as tampering.

    Raises:
        ValueError: an unknown kind. Nothing about the report itself ever raises.
    """
    # os.path, for Path.is_file raises on a text longer than any name may be
    if isinstance(path_or_text, str) and not os.path.isfile(path_or_text):
        return parse_report(path_or_text, kind, nonce=nonce)
    try:
        text = Path(path_or_text).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return VerifierReport({}, None, kind, f"the report cannot be opened: {error.strerror}")
    return parse_report(text, kind, nonce=nonce)


def parse_report(text: str, kind: str, *, nonce: str | None = None) -> VerifierReport:
    """The report in a text, which is never taken for a path. Arguments and errors as in `read_report`."""
    if kind not in KINDS:
        raise ValueError(f"unknown report kind {kind!r}: one of {', '.join(KINDS)}")
    if not text.strip():
        return VerifierReport({}, None, kind, "the report is empty")
    if len(text) > MOST_CHARS:
        return VerifierReport({}, None, kind, f"the report is longer than {MOST_CHARS} characters")
    try:
        return read_stream(text, nonce) if kind == "assertions.jsonl" else _FOREIGN[kind](text)
    except Unreadable as error:
        return VerifierReport({}, None, kind, str(error))


def read_files(files: Mapping[str, bytes]) -> VerifierReport | None:
    """What a verifier wrote into its log folder: a verdict for Harbor, and the assertions of the best report beside it.

    None where there is no verdict; a verdict file that cannot be read counts as none, and its cause is told. Of two
    that disagree the lower counts: a script writes one, and what it runs may write the other.
    """
    causes: list[str] = []
    verdicts: list[VerifierReport] = []
    for name in VERDICT_FILES:
        if name in files:
            verdict = parse_report(files[name].decode("utf-8", "replace"), name)
            if verdict.outcome is not None:
                verdicts.append(verdict)
            else:
                causes.append(f"{name}: {verdict.parse_cause}")
    if not verdicts:
        return VerifierReport({}, None, "files", "; ".join(causes)) if causes else None
    lowest, highest = (choose(verdicts, key=lambda verdict: verdict.number or 0.0) for choose in (min, max))
    if lowest.number != highest.number:
        told = f"{highest.source} says {highest.number:g} where {lowest.source} says {lowest.number:g}"
        causes.append(f"tampering: {told}")
    return _with_assertions(lowest, files, causes)


def _with_assertions(verdict: VerifierReport, files: Mapping[str, bytes], causes: list[str]) -> VerifierReport:
    """The script decides: it may ask for more than its tests do."""
    for name, kind in ASSERTION_FILES.items():
        if name in files:
            report = parse_report(files[name].decode("utf-8", "replace"), kind)
            if report.assertions:
                cause = "; ".join(filter(None, (*causes, report.parse_cause))) or None
                source = f"{verdict.source}+{name}"
                return VerifierReport(report.assertions, verdict.outcome, source, cause, verdict.number)
            causes.append(f"{name}: {report.parse_cause}")
    return replace(verdict, parse_cause="; ".join(causes) or None)
