"""Execution gates: a task enters the pool because running it showed that it works.

Invariants: an accepted task built, was solved by its own reference solution to the last assertion every time, was not
already solved untouched, and said the same every time it was asked. A rejection names what was seen. A fault of the
infrastructure is neither: the task has no result and is run again next time.

Found this way in the miniature's first tasks: a missing program, a solution that read an error message as a file name,
an assertion that refused a right answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from components.config import PoolConfig, SandboxConfig
from components.errors import InfraFault, TaskError
from components.harness import dismiss, verify_result
from components.outcomes import AGAINST_TASK
from components.pool import Task
from components.records import AssertionOutcome, VerifierReport
from components.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxSpec

DETAIL_BYTES = 400
"""How much of a solution's output a rejection quotes."""
DEFAULT_SOLUTION_S = 600.0
"""For tasks that set no agent timeout."""


class Rejection(StrEnum):
    """Why a task is not accepted."""

    BUILD = "build"
    NO_SOLUTION = "no_solution"
    NO_REPORT = "no_report"
    ORACLE_FAILS = "oracle_fails"
    NOOP_PASSES = "noop_passes"
    FLAKY = "flaky"
    UNDECLARED = "undeclared_assertions"


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gates saw of one version of one task. `rejection` is None for an accepted task."""

    task_id: str
    digest: str
    rejection: Rejection | None
    detail: str = ""
    assertion_ids: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GateResult:
        """Raises KeyError, TypeError or ValueError when `document` is not one."""
        values = {f.name: document[f.name] for f in fields(cls)}
        for name in ("assertion_ids", "fail_to_pass", "pass_to_pass"):
            values[name] = tuple(values[name])
        values["rejection"] = None if values["rejection"] is None else Rejection(values["rejection"])
        return cls(**values)


class Refused(Exception):
    """A gate that did not open."""

    def __init__(self, rejection: Rejection, detail: str) -> None:
        self.rejection = rejection
        self.detail = detail
        super().__init__(rejection, detail)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The outcomes of every run, by assertion id."""

    noop: Sequence[Mapping[str, AssertionOutcome]]
    oracle: Sequence[Mapping[str, AssertionOutcome]]


async def gate(task: Task, backend: SandboxBackend, pool: PoolConfig, sandbox: SandboxConfig) -> GateResult:
    """Runs one task through every gate.

    Raises:
        InfraFault: the infrastructure failed; nothing is known about the task.
    """
    started = time.monotonic()
    ids: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    rejection, detail = None, ""
    try:
        evidence = await _gather(task, backend, pool, sandbox)
        ids, fail_to_pass, pass_to_pass = judge(evidence, task.ref.assertion_ids)
    except Refused as refusal:
        rejection, detail = refusal.rejection, refusal.detail
    seconds = round(time.monotonic() - started, 4)
    return GateResult(task.ref.task_id, task.ref.digest, rejection, detail, ids, fail_to_pass, pass_to_pass, seconds)


def judge(evidence: Evidence, declared: Sequence[str] = ()) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(assertion ids, fail to pass, pass to pass) of a task with this evidence.

    Raises:
        Refused: the evidence speaks against the task.
    """
    ids = tuple(evidence.oracle[0])
    for outcomes in (*evidence.oracle, *evidence.noop):
        if set(outcomes) != set(ids):
            raise Refused(Rejection.FLAKY, f"assertions differ between runs: {sorted(set(outcomes) ^ set(ids))}")
    if declared and set(declared) != set(ids):
        raise Refused(Rejection.UNDECLARED, f"task.toml and the report differ: {sorted(set(declared) ^ set(ids))}")
    passed = {id_: [run[id_] is AssertionOutcome.PASSED for run in evidence.noop] for id_ in ids}
    flaky = [id_ for id_, runs in passed.items() if any(runs) and not all(runs)]
    if flaky:
        raise Refused(Rejection.FLAKY, f"the untouched environment passes these only sometimes: {flaky}")
    fail_to_pass = tuple(id_ for id_ in ids if not all(passed[id_]))
    if not fail_to_pass:
        raise Refused(Rejection.NOOP_PASSES, "the untouched environment passes every assertion")
    return ids, fail_to_pass, tuple(id_ for id_ in ids if all(passed[id_]))


async def _gather(task: Task, backend: SandboxBackend, pool: PoolConfig, sandbox: SandboxConfig) -> Evidence:
    """Verifies the untouched box, then runs the solution in it and verifies again; as often as configured."""
    if task.solution_dir is None:
        raise Refused(Rejection.NO_SOLUTION, "solution/solve.sh is missing: nothing shows that it can be solved")
    spec = _spec(task, sandbox)
    noop: list[Mapping[str, AssertionOutcome]] = []
    oracle: list[Mapping[str, AssertionOutcome]] = []
    for run in range(max(pool.noop_runs, pool.oracle_runs)):
        box = await _start(backend, spec)
        try:
            if run < pool.noop_runs:
                noop.append(_outcomes(await _verify(task, box, spec), "untouched"))
            if run < pool.oracle_runs:
                result = await _solve(task, box)
                outcomes = _outcomes(await _verify(task, box, spec), "solved")
                _require_solved(outcomes, result, run)
                oracle.append(outcomes)
        finally:
            await dismiss(box)
    return Evidence(noop, oracle)


def _spec(task: Task, sandbox: SandboxConfig) -> SandboxSpec:
    try:
        return task.sandbox_spec(sandbox)
    except TaskError as error:
        raise Refused(Rejection.BUILD, "; ".join(error.problems)) from error


async def _start(backend: SandboxBackend, spec: SandboxSpec) -> Sandbox:
    try:
        return await backend.start(spec)
    except InfraFault as fault:
        if fault.cause in AGAINST_TASK:
            raise Refused(Rejection.BUILD, fault.detail) from fault
        raise


async def _solve(task: Task, box: Sandbox) -> ExecResult:
    if task.solution_dir is None:
        raise Refused(Rejection.NO_SOLUTION, "solution/solve.sh is missing")
    await box.put_tree(task.solution_dir, "/solution")
    return await box.exec(
        ["bash", "/solution/solve.sh"],
        timeout_s=task.manifest.agent_timeout_s or DEFAULT_SOLUTION_S,
        env=task.manifest.solution_env,
    )


async def _verify(task: Task, box: Sandbox, spec: SandboxSpec) -> VerifierReport:
    """A verifier that cannot be set up, or never ends, speaks against the task; anything else against us."""
    try:
        timeout_s = task.manifest.verifier_timeout_s
        return (await verify_result(box, task, timeout_s=timeout_s, workdir=spec.workdir)).report
    except InfraFault as fault:
        if fault.cause in AGAINST_TASK:
            raise Refused(Rejection.NO_REPORT, str(fault)) from fault
        raise


def _outcomes(report: VerifierReport, state: str) -> Mapping[str, AssertionOutcome]:
    if not report.assertions:
        cause = report.parse_cause or f"{report.source} names no assertion"
        raise Refused(Rejection.NO_REPORT, f"{state}: {cause}")
    return report.assertions


def _require_solved(outcomes: Mapping[str, AssertionOutcome], result: ExecResult, run: int) -> None:
    failed = [f"{id_} {outcome}" for id_, outcome in outcomes.items() if outcome is not AssertionOutcome.PASSED]
    if not failed:
        return
    ended = "timed out" if result.timed_out else f"exit {result.exit_code}"
    tail = result.output[-DETAIL_BYTES:].decode("utf-8", "replace").strip()
    detail = f"run {run + 1}: {', '.join(failed)}; solve.sh {ended}: {tail}"
    raise Refused(Rejection.FLAKY if run else Rejection.ORACLE_FAILS, detail)
