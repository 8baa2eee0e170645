"""Grading what an agent left behind, out of the agent's reach.

Invariants: the verifier runs in a fresh box with a pristine system, over the files the agent left, after every process
of the agent has ended; /tests is put there then, made read-only, and found unchanged afterwards; so is the system, but
for verifiers that install what they run; /logs/verifier is made anew; the environment is the image's. What was reverted
is told, path by path. The report is read from a channel whose every line carries a secret that can be read once, by the
verifier; a task from elsewhere that knows nothing of it is read from the files it writes in that box, its pytest from
the channel too, once nothing runs there any more. What it all means `components.outcomes` decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from components.errors import FaultCause, InfraFault
from components.harness.cleanup import dismiss
from components.harness.environment import TrialTask
from components.outcomes import TAMPERING, VerifierEnded, verdict_of
from components.records import VerifierReport
from components.reward import ASSERTION_FILES, VERDICT_FILES, parse_report, read_began, read_files
from components.sandbox import ExecResult, FileEntry, Left, Remains, Sandbox, View, read_tree

TESTS, LOGS, TOOLS = "/tests", "/logs/verifier", "/run/longshell"
TEST_SCRIPT = f"{TESTS}/test.sh"
TOOL_FILES = ("longshell_report.py", "sitecustomize.py")
LAY_OUT = f"""
PATH=/usr/bin:/bin
rm -rf --one-file-system -- {TESTS} /logs && mkdir -p {LOGS} || exit 1
[ -d "$1" ] || {{ rm -rf --one-file-system -- "$1" && mkdir -p -- "$1"; }}
shift
[ $# = 0 ] || rm -rf --one-file-system -- "$@"
"""
"""/logs goes whole, it could be a link of the agent's. A working directory that the agent removed is empty, not absent:
its assertions then fail, instead of the verifier."""
START = f'export PYTHONPATH="{TOOLS}${{PYTHONPATH:+:$PYTHONPATH}}"; . {TEST_SCRIPT}'
"""The image, or the task for its verifier, may have a PYTHONPATH of its own. The script is read by this very bash, and
not by another: what keeps programs from looking into it may hold for the one that was started, and for none it starts.
"""
CONTROL_S = 60.0
"""Deadline of each control-plane call around the tests themselves."""
MAX_REPORT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """One grading.

    Attributes:
        ended: the verdict, or why there is none.
        left: what the agent left that the verifier did not see.
        remains: what was left of the verifier's own run.
        tests_sha256: names the tests that were run.
    """

    ended: VerifierReport | InfraFault
    left: Left
    remains: Remains
    tests_sha256: str

    @property
    def report(self) -> VerifierReport:
        """The verdict.

        Raises:
            InfraFault: there is none.
        """
        if isinstance(self.ended, InfraFault):
            raise self.ended
        return self.ended

    def facts(self) -> dict[str, Any]:
        """For the trial: every sign of tampering, and programs that were left running."""
        cause = "" if isinstance(self.ended, InfraFault) else self.ended.parse_cause or ""
        signs = [sign for sign in cause.split("; ") if sign.startswith(TAMPERING)]
        doubtful = [f"planted {path}" for path in self.left.doubtful]
        return {
            "tampering": [*self.left.reverted, *doubtful, *self.remains.changed, *_overwritten(self.remains), *signs],
            "left_running": [*self.left.ended, *self.remains.ended],
            "tests_sha256": self.tests_sha256,
        }


async def verify_result(sandbox: Sandbox, task: TrialTask, *, timeout_s: float, workdir: str = "/app") -> Verification:
    """Grades the files in `sandbox`, whose processes are ended first.

    Raises:
        InfraFault: the verifier could not be started.
    """
    tests = await asyncio.to_thread(read_tree, task.tests_dir, TESTS)
    view = await sandbox.fork_view()
    try:
        sealed = not (view.networked or task.verifier_installs)
        await _lay_out(view, tests, workdir, sealed=sealed)
        nonce = secrets.token_hex(16)
        result = await view.exec(
            [view.shell, "--noprofile", "--norc", "-c", START, TEST_SCRIPT],
            timeout_s=timeout_s,
            cwd=workdir,
            env=task.verifier_env,
            max_output_bytes=MAX_REPORT_BYTES,
            merge_stderr=False,
            secret=f"{nonce}\n".encode(),
        )
        remains = await view.finish(read_began(result.report.decode("utf-8", "replace"), nonce))
        seen = await _seen(view, result, nonce, tests, timeout_s)
        seen = replace(seen, system_whole=not (sealed and remains.changed), logs_whole=not _overwritten(remains))
        return Verification(verdict_of(seen), view.left, remains, _digest(tests))
    finally:
        await dismiss(view)


async def _lay_out(view: View, tests: Mapping[str, FileEntry], workdir: str, *, sealed: bool) -> None:
    """Makes /tests and /logs/verifier anew: whatever stands there was not put there by us."""
    prepared = await view.exec(
        ["/bin/bash", "--noprofile", "--norc", "-c", LAY_OUT, "lay-out", workdir, *view.left.doubtful],
        timeout_s=CONTROL_S,
        cwd="/",
    )
    if prepared.exit_code != 0:
        said = prepared.output[-600:].decode("utf-8", "replace")
        raise InfraFault(FaultCause.SANDBOX, f"cannot prepare the verifier's folders: {said}")
    try:
        await view.put({TESTS: FileEntry(kind="directory", mode=0o755), **tests, **_tools()})
    except OSError as error:
        raise InfraFault(FaultCause.SANDBOX, f"cannot write {TESTS}: {error}") from error
    await view.seal(TESTS, TOOLS, system=sealed)
    if not await _is_whole(view, tests):
        raise InfraFault(FaultCause.SANDBOX, f"{TESTS} does not hold what was put there")


async def _is_whole(view: View, tests: Mapping[str, FileEntry]) -> bool:
    """Whether every file of the tests has the content it was put with, as the box's first process reads it."""
    for path, entry in tests.items():
        if entry.kind == "file" and await _get(view, path, len(entry.content)) != entry.content:
            return False
    return True


async def _seen(
    view: View, result: ExecResult, nonce: str, tests: Mapping[str, FileEntry], timeout_s: float
) -> VerifierEnded:
    """What there is to be judged by, once the verifier has ended."""
    said = result.output.decode("utf-8", "replace")
    stream = _stream(result.report.decode("utf-8", "replace"), said, nonce, whole=not result.truncated)
    asked = VERDICT_FILES if stream is not None and stream.assertions else (*VERDICT_FILES, *ASSERTION_FILES)
    written = {name: await _get(view, f"{LOGS}/{name}") for name in asked}
    return VerifierEnded(
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        timeout_s=timeout_s,
        oom=result.oom,
        said=f"{said}\n{(result.stderr or b'').decode('utf-8', 'replace')}",
        stream=stream,
        files=read_files({name: data for name, data in written.items() if data is not None}),
        tests_whole=await _is_whole(view, tests),
    )


def _overwritten(remains: Remains) -> list[str]:
    """What the verifier is judged by and something that outlived it went on to write."""
    names = {f"changed {LOGS}/{name}" for name in (*VERDICT_FILES, *ASSERTION_FILES)}
    return [line for line in remains.late if line in names]


def _stream(report: str, said: str, nonce: str, *, whole: bool) -> VerifierReport | None:
    """What was reported with the nonce: on the channel, or between everything else that was said."""
    if nonce in said and not whole:
        return VerifierReport({}, None, "assertions.jsonl", f"the output is longer than {MAX_REPORT_BYTES} bytes")
    spoken = f"{report}\n{said}" if nonce in said else report
    return parse_report(spoken, "assertions.jsonl", nonce=nonce) if nonce in spoken else None


async def _get(view: View, path: str, max_bytes: int = MAX_REPORT_BYTES) -> bytes | None:
    """A file's bytes, or None when there is none to be had: absence is an answer here, not a fault."""
    try:
        return await view.get(path, max_bytes=max_bytes)
    except OSError:
        return None


@cache
def _tools() -> Mapping[str, FileEntry]:
    folder = files("components.harness.in_view")
    return {f"{TOOLS}/{name}": FileEntry(folder.joinpath(name).read_bytes()) for name in TOOL_FILES}


def _digest(tests: Mapping[str, FileEntry]) -> str:
    state = hashlib.sha256()
    for path, entry in sorted(tests.items()):
        state.update(repr((path, entry.kind, entry.mode, len(entry.content))).encode() + entry.content)
    return state.hexdigest()
