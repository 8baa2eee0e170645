"""Reads a verifier's report, whatever wrote it.

Invariant: what cannot be read, or was not finished, has no outcome and says why; it is never a failure of the policy.
Kinds in the order in which they are to be trusted: our own streamed lines, JUnit, CTRF from 0.6, CTRF 0.3.5 (collapses
parametrised tests: a floor), `pytest -rA` (text for people).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from components.records import VerifierReport
from components.reward.foreign import Unreadable, read_ctrf, read_junit, read_pytest
from components.reward.stream import read_stream

_FOREIGN: dict[str, Callable[[str], VerifierReport]] = {
    "junit": read_junit,
    "ctrf": read_ctrf,
    "pytest -rA": read_pytest,
    "pytest": read_pytest,
}

KINDS = ("assertions.jsonl", *_FOREIGN)


def read_report(path_or_text: Path | str, kind: str, *, nonce: str | None = None) -> VerifierReport:
    """The report at a path, or in a text. A string that names a file on this machine is a path.

    For text that comes out of a sandbox use `parse_report`: an agent could write the name of a file of ours.

    Args:
        path_or_text: a path, or the report itself.
        kind: "assertions.jsonl", "junit", "ctrf" or "pytest -rA".
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
    try:
        return read_stream(text, nonce) if kind == "assertions.jsonl" else _FOREIGN[kind](text)
    except Unreadable as error:
        return VerifierReport({}, None, kind, str(error))
