"""Grading what an agent left behind, out of the agent's reach.

Invariants: the verifier runs in a fresh box with a pristine system, over the files the agent left, after every process
of the agent has ended; /tests and /logs/verifier are made anew there; the report is read from the verifier's own
stdout, where each line carries a nonce the agent never saw. A missing verdict is an infrastructure fault, never a 0.

A task from elsewhere that knows nothing of the nonce is read from the files it writes in that fresh box.
"""

from __future__ import annotations

import json
import math
import re
import secrets

from components.errors import FaultCause, InfraFault
from components.harness.cleanup import dismiss
from components.harness.environment import TrialTask
from components.records import VerifierReport
from components.reward import parse_report
from components.sandbox import ExecResult, Sandbox

NONCE_VARIABLE = "LONGSHELL_NONCE"
TESTS, LOGS = "/tests", "/logs/verifier"
TEST_SCRIPT = f"{TESTS}/test.sh"
LAY_OUT = f"""
PATH=/usr/bin:/bin
rm -rf --one-file-system -- {TESTS} /logs && mkdir -p {LOGS} || exit 1
[ -d "$1" ] || {{ rm -rf --one-file-system -- "$1" && mkdir -p -- "$1"; }}
"""
"""/logs goes whole, it could be a link of the agent's. A working directory that the agent removed is empty, not absent:
its assertions then fail, instead of the verifier."""
CONTROL_S = 60.0
"""Deadline of each control-plane call around the tests themselves."""
MAX_REPORT_BYTES = 4 << 20
TAIL_BYTES = 600
"""Of the verifier's output, in a fault's detail."""
BOOTSTRAP_SIGNS = re.compile(
    r"^(?:curl: \(\d+\)|E: (?:Unable to|Failed to|Could not|dpkg was interrupted)|.*\b(?:uvx?|curl|apt-get|pip): "
    r"command not found|error: Failed to (?:fetch|download))",
    re.MULTILINE,
)
"""Lines that say the verifier could not be set up: 6.6 % of public trials were scored 0 for these."""


async def verify_result(
    sandbox: Sandbox, task: TrialTask, *, timeout_s: float, workdir: str = "/app"
) -> VerifierReport:
    """Grades the files in `sandbox`, whose processes are ended first.

    Raises:
        InfraFault: the verifier could not be started, ran out of time, or gave no verdict.
    """
    view = await sandbox.fork_view()
    try:
        await _lay_out(view, task, workdir)
        nonce = secrets.token_hex(16)
        result = await view.exec(
            ["/bin/bash", "--noprofile", "--norc", TEST_SCRIPT],
            timeout_s=timeout_s,
            cwd=workdir,
            env={NONCE_VARIABLE: nonce},
            max_output_bytes=MAX_REPORT_BYTES,
            merge_stderr=False,
        )
        return await _read_verdict(view, result, nonce, timeout_s)
    finally:
        await dismiss(view)


async def _lay_out(view: Sandbox, task: TrialTask, workdir: str) -> None:
    """Makes /tests and /logs/verifier anew: whatever stands there was not put there by us."""
    prepared = await view.exec(
        ["/bin/bash", "--noprofile", "--norc", "-c", LAY_OUT, "lay-out", workdir],
        timeout_s=CONTROL_S,
        cwd="/",
    )
    if prepared.exit_code != 0:
        raise InfraFault(FaultCause.SANDBOX, f"cannot prepare the verifier's folders: {_tail(prepared.output)}")
    try:
        await view.put_tree(task.tests_dir, TESTS)
    except OSError as error:
        raise InfraFault(FaultCause.SANDBOX, f"cannot write {TESTS}: {error}") from error


async def _read_verdict(view: Sandbox, result: ExecResult, nonce: str, timeout_s: float) -> VerifierReport:
    """The nonce's lines, or else the files of a task that does not know them."""
    text = result.output.decode("utf-8", "replace")
    said = f"{text}\n{(result.stderr or b'').decode('utf-8', 'replace')}"
    if nonce in text:
        report = parse_report(text, "assertions.jsonl", nonce=nonce)
        if report.outcome is not None:
            return report
        cause = report.parse_cause or "the report has no verdict"
    else:
        found = await _read_files(view)
        if found is not None and not (found.outcome is False and not found.assertions and BOOTSTRAP_SIGNS.search(said)):
            return found
        cause = "no verdict was written" if found is None else "the verifier's own set-up failed"
    if result.timed_out:
        raise InfraFault(FaultCause.VERIFIER_TIMEOUT, f"no verdict within {timeout_s:g} s: {_tail(said.encode())}")
    raise InfraFault(FaultCause.VERIFIER_BOOTSTRAP, f"{cause} (exit {result.exit_code}): {_tail(said.encode())}")


async def _read_files(view: Sandbox) -> VerifierReport | None:
    """What Harbor would read: CTRF for the assertions, reward.json or reward.txt for the verdict."""
    outcome, source = None, ""
    for name, read in (("reward.json", _reward_json), ("reward.txt", _reward_text)):
        data = await _get(view, f"{LOGS}/{name}")
        if data is not None and (value := read(data)) is not None:
            outcome, source = value >= 1.0, name
            break
    if outcome is None:
        return None
    ctrf = await _get(view, f"{LOGS}/ctrf.json")
    if ctrf is None:
        return VerifierReport({}, outcome, source)
    report = parse_report(ctrf.decode("utf-8", "replace"), "ctrf")
    return VerifierReport(report.assertions, outcome, f"{source}+ctrf", report.parse_cause)


async def _get(view: Sandbox, path: str) -> bytes | None:
    """A file's bytes, or None when there is none: absence is an answer here, not a fault."""
    try:
        return await view.get(path)
    except OSError:
        return None


def _reward_text(data: bytes) -> float | None:
    try:
        value = float(data.decode("utf-8", "replace").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _reward_json(data: bytes) -> float | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    value = document.get("reward") if isinstance(document, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _tail(output: bytes) -> str:
    return output[-TAIL_BYTES:].decode("utf-8", "replace").strip() or "(no output)"
