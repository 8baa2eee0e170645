"""`assertions.jsonl`: our own report, streamed line by line on the verifier's own channel.

    {"nonce": N, "collected": ["a", "b"]}             first: what is going to be checked; also when it `began`
    {"nonce": N, "id": "a", "outcome": "passed"}      passed, failed, error or skipped; as soon as it is known
    {"nonce": N, "finished": true}                    last: nothing was cut off

A line with `"runner": "pytest"` says that a test runner speaks: what it skips is then no failure.

Invariant: with a nonce given, only lines that carry it say anything; the channel may hold any other output. Without the
last line there is no verdict: the verifier was killed, and what it had not reported did not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from components.records import AssertionOutcome, VerifierReport
from components.reward.foreign import gathered, passes

SOURCE = "assertions.jsonl"
SPOKEN = ("collected", "id", "finished")


def read_stream(text: str, nonce: str | None) -> VerifierReport:
    """The verdict of these lines: every collected assertion passed, and the verifier finished."""
    heard: list[tuple[object, AssertionOutcome]] = []
    collected: list[object] = []
    finished, forged, by_runner = False, 0, False
    for line in _lines(text):
        if nonce is not None and line.get("nonce") != nonce:
            forged += 1
            continue
        if isinstance(line.get("collected"), list):
            collected += line["collected"]
        if "id" in line:
            heard.append((line["id"], _outcome(line.get("outcome"))))
        by_runner = by_runner or line.get("runner") == "pytest"
        finished = finished or line.get("finished") is True
    said = gathered(heard)
    planned = gathered((value, AssertionOutcome.NOT_RUN) for value in collected)
    assertions = {name: said.get(name, missing) for name, missing in planned.items()} | said
    causes = [f"tampering: {forged} lines without the nonce"] if forged else []
    if not finished:
        causes.append(f"the report breaks off: {len(said)} of {len(assertions)} assertions reported")
    elif not assertions:
        causes.append("the report names no assertions")
    decided = finished and bool(assertions)
    everything = all(outcome is AssertionOutcome.PASSED for outcome in assertions.values())
    passed = passes(assertions) if by_runner else everything
    return VerifierReport(assertions, passed if decided else None, SOURCE, "; ".join(causes) or None)


def read_began(text: str, nonce: str) -> int | None:
    """When the runner says that it began to run what it had collected: the first, where several say so.

    In nanoseconds of its box's time; None where nobody says it.
    """
    said = [line.get("began") for line in _lines(text) if line.get("nonce") == nonce]
    return min((moment for moment in said if isinstance(moment, int)), default=None)


def _lines(text: str) -> Iterator[dict[str, Any]]:
    """Objects among the lines that speak as a report does. Anything else on the channel is output of the checks."""
    for line in text.splitlines():
        if not line.lstrip().startswith("{"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if any(key in value for key in SPOKEN):
            yield value


def _outcome(word: object) -> AssertionOutcome:
    """An outcome that is not one of ours is an error of the check."""
    known = {outcome.value: outcome for outcome in AssertionOutcome}
    return known.get(str(word), AssertionOutcome.ERROR)
