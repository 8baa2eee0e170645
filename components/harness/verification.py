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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from components.errors import FaultCause, InfraFault
from components.harness.cleanup import dismiss
from components.harness.environment import TrialTask
from components.outcomes import TAMPERING, VerifierEnded, verdict_of
from components.records import VerifierReport
from components.reward import ASSERTION_FILES, MOST_CHARS, VERDICT_FILES, parse_report, read_began, read_files
from components.sandbox import ExecResult, FileEntry, Left, Remains, Sandbox, View, read_tree

TESTS, LOGS, TOOLS = "/tests", "/logs/verifier", "/run/longshell"
TEST_SCRIPT = f"{TESTS}/test.sh"
TOOL_FILES = ("longshell_report.py", "sitecustomize.py")
LAY_OUT = f"""
PATH=/usr/bin:/bin
rm -rf --one-file-system -- {TESTS} /logs && mkdir -p {LOGS} || exit 1
stands() {{ (cd -P -- "$1" && [[ $PWD/ != /proc/* ]]) 2>/dev/null; }}
anew() {{ rm -rf --one-file-system -- "$1"; mkdir -p -- "$2"; stands "$2"; }}
top=${{1#/}}; top=/${{top%%/*}}
stands "$1" || anew "$1" "$1" || anew "$top" "$1" || exit 1
shift
system='^/(usr|etc|bin|boot|dev|lib[^/]*|proc|run|sbin|sys)/'
for path; do
    place=$(cd -P -- "${{path%/*}}" 2>/dev/null && pwd)
    [[ ${{place%/}}/${{path##*/}}/ =~ $system ]] || rm -rf --one-file-system -- "$path" || exit 1
done
"""
"""/logs goes whole, it could be a link of the agent's. A working directory that the agent removed is empty, not absent:
its assertions then fail, instead of the verifier. So is one whose parent is a file, or that leads to /proc: to a
process, which is there now and not later. What a link of the agent's leads to in the system is the system's, and stays.
"""
FIND_WAITING = """
PATH=/usr/bin:/bin
find -L "$1" -xdev \\( -type p -o -type c -o -type b \\) -print -quit
"""
"""A pipe or a device at which whoever opens it may wait for ever, also behind a link."""
START = f'export PYTHONPATH="{TOOLS}${{PYTHONPATH:+:$PYTHONPATH}}"; . {TEST_SCRIPT}'
"""The image, or the task for its verifier, may have a PYTHONPATH of its own. The script is read by this very bash, and
not by another: what keeps programs from looking into it may hold for the one that was started, and for none it starts.
"""
TOLD_CHARS = 200
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
            "tampering": [*self.left.reverted, *doubtful, *self.remains.changed, *self.remains.late, *signs],
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
        left = replace(view.left, doubtful=view.left.unasked(task.instruction))
        await _lay_out(view, tests, (workdir, *left.doubtful), sealed=sealed)
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
        written, spoiled = await _written(view)
        remains = replace(remains, late=(*filter(_is_judged_by, remains.late), *spoiled))
        seen = replace(
            _seen(result, nonce, timeout_s, written),
            tests_whole=await _is_whole(view, tests),
            system_whole=not (sealed and remains.changed),
            logs_whole=not remains.late,
            waits_at=await _waits_at(view, workdir) if result.timed_out or result.oom else None,
        )
        return Verification(verdict_of(seen), left, remains, _digest(tests))
    finally:
        await dismiss(view)


async def _lay_out(view: View, tests: Mapping[str, FileEntry], places: Sequence[str], *, sealed: bool) -> None:
    """Makes /tests and /logs/verifier anew: whatever stands there was not put there by us.

    `places` are the working folder, which is made where it is not there, and what is removed.
    """
    prepared = await view.exec(
        ["/bin/bash", "--noprofile", "--norc", "-c", LAY_OUT, "lay-out", *places],
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


async def _written(view: View) -> tuple[dict[str, bytes], list[str]]:
    """What is in the log folder to be judged by, and what stands there that no script writes as its verdict."""
    written: dict[str, bytes] = {}
    spoiled: list[str] = []
    for name in (*VERDICT_FILES, *ASSERTION_FILES):
        try:
            written[name] = await view.get(f"{LOGS}/{name}", max_bytes=MAX_REPORT_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:  # a folder, a pipe, too much
            spoiled += [f"spoiled {LOGS}/{name}: {error.strerror}"] if name in VERDICT_FILES else []
    return written, spoiled


def _is_judged_by(line: str) -> bool:
    """Whether what outlived the verifier wrote to what that is judged by."""
    names = (*VERDICT_FILES, *ASSERTION_FILES)
    return line in (f"replaced {LOGS}", *(f"changed {LOGS}/{name}" for name in names))


async def _waits_at(view: View, workdir: str) -> str | None:
    """A pipe or a device that the agent left where its work is."""
    command = ["/bin/bash", "--noprofile", "--norc", "-c", FIND_WAITING, "find", workdir]
    found = await view.exec(command, timeout_s=CONTROL_S, cwd="/", merge_stderr=False)
    return found.output.decode("utf-8", "backslashreplace").strip()[:TOLD_CHARS] or None


def _seen(result: ExecResult, nonce: str, timeout_s: float, written: Mapping[str, bytes]) -> VerifierEnded:
    """What there is to be judged by, once the verifier has ended."""
    said = result.output.decode("utf-8", "replace")
    stream = _stream(result, said, nonce)
    heard = stream is not None and bool(stream.assertions)
    return VerifierEnded(
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        timeout_s=timeout_s,
        oom=result.oom,
        said=f"{said}\n{(result.stderr or b'').decode('utf-8', 'replace')}",
        stream=stream,
        files=read_files({name: data for name, data in written.items() if name in VERDICT_FILES or not heard}),
    )


def _stream(result: ExecResult, said: str, nonce: str) -> VerifierReport | None:
    """What was reported with the nonce: on the channel, or between everything else that was said.

    Where a flood has left a hole in it, what was heard is no pass.
    """
    report = result.report.decode("utf-8", "replace")
    spoken = f"{report}\n{said}" if nonce in said else report
    heard = parse_report(spoken, "assertions.jsonl", nonce=nonce) if nonce in spoken else None
    cut = len(result.output) > MAX_REPORT_BYTES  # with a note of what is missing
    unread = nonce in spoken and len(spoken) > MOST_CHARS  # each is within its bound, and both are not
    if not (result.report_flooded or unread or (nonce in said and cut)):
        return heard
    assertions = {} if heard is None else heard.assertions
    return VerifierReport(assertions, False, "assertions.jsonl", f"{TAMPERING}: a flood has left a hole in the report")


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
