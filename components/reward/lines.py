"""Reports that grow line by line and say themselves when they are whole: TAP and `go test -json`.

Invariant: a report that breaks off has no verdict, but keeps what it said. Only whole lines of the format count, so
other output between them changes nothing; what is said twice has the worst outcome said of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from components.records import AssertionOutcome, VerifierReport
from components.reward.foreign import ERROR, FAILED, NOT_RUN, PASSED, SKIPPED, Unreadable, gathered, passes, report_of

_PLAN = re.compile(r"^1\.\.(\d{1,5})(?:\s*#.*)?$")
_POINT = re.compile(r"^(not )?ok(?![^ \t])")
_BAIL = re.compile(r"^Bail out!", re.IGNORECASE)
_GO = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}


def read_tap(text: str) -> VerifierReport:
    """The Test Anything Protocol, versions 12 to 14. Subtests are indented and are summed up by their parent's line.

    What is still to be done ("# TODO") earns nothing, whether it passes or not.
    """
    plans: list[int] = []
    points: set[int] = set()
    found: list[tuple[object, AssertionOutcome]] = []
    number = 0
    for line in text.splitlines():
        if plan := _PLAN.match(line):
            plans.append(int(plan[1]))
        elif _BAIL.match(line):
            return VerifierReport(gathered(found), None, "tap", f"the runner gave up: {line[:200]}")
        elif start := _POINT.match(line):
            said, _, directive = line[start.end() :].partition("#")
            digits, _, rest = said.strip().partition(" ")
            number, name = (int(digits), rest) if digits.isdecimal() and len(digits) < 7 else (number + 1, said)
            points.add(number)
            skipped = directive.strip().upper().startswith(("SKIP", "TODO"))
            outcome = SKIPPED if skipped else FAILED if start[1] else PASSED
            found.append((name.strip().removeprefix("- ").strip() or number, outcome))
    if len(plans) > 1:
        raise Unreadable("there are several plans")
    planned = plans[0] if plans else 0
    if not plans or points != set(range(1, planned + 1)) or len(found) != planned:
        missing = [(n, NOT_RUN) for n in range(1, planned + 1) if n not in points] if found else []
        cause = f"the report breaks off or is not one: {len(found)} points of {planned if plans else 'no plan'}"
        return VerifierReport(gathered([*found, *missing]), None, "tap", cause)
    return report_of("tap", found)


def read_go(text: str) -> VerifierReport:
    """`go test -json`: one event a line. A package that fails for no test of its own is an assertion that broke."""
    ended: list[tuple[object, AssertionOutcome]] = []
    running: dict[str, None] = {}
    packages: dict[str, AssertionOutcome | None] = {}
    for event in _events(text):
        package, test, action = str(event.get("Package", "")), event.get("Test"), event["Action"]
        outcome = _GO.get(action)
        if action == "build-fail":
            ended.append((event.get("ImportPath", package), ERROR))
        elif test is None:
            packages[package] = outcome or packages.get(package)
        elif outcome is not None:
            running.pop(f"{package}.{test}", None)
            ended.append((f"{package}.{test}", outcome))
        elif action == "run":
            running[f"{package}.{test}"] = None
    if not packages:
        raise Unreadable("there is no event of a package")
    ended += [(name, ERROR) for name in running]
    failed = {str(name).rpartition(".")[0] for name, outcome in ended if outcome in (FAILED, ERROR)}
    ended += [(name, ERROR) for name, said in packages.items() if said is FAILED and name not in failed]
    open_packages = [name for name, said in packages.items() if said is None]
    if open_packages:
        cause = f"the report breaks off: {len(open_packages)} of {len(packages)} packages have not ended"
        return VerifierReport(gathered(ended), None, "go test -json", cause)
    assertions = gathered(ended)
    if not assertions:
        raise Unreadable("the report names no assertions")
    return VerifierReport(assertions, passes(assertions), "go test -json")


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event.get("Action"), str):
            yield event
