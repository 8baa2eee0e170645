"""Execution gates: a task enters the pool because running it showed that it works.

Invariants: an accepted task built, was solved by its own reference solution to the last assertion every time, was not
already solved untouched, and said the same every time it was asked. A rejection names what was seen. A fault of the
infrastructure is neither: the task has no result and is run again next time. What costs nothing is looked at first;
what an imported pool asks for besides (`components.curation.probes`) is tried last, on tasks that passed all else.

Found this way in the miniature's first tasks: a missing program, a solution that read an error message as a file name,
an assertion that refused a right answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from components.config import PoolConfig, SandboxConfig
from components.curation.leaks import Secrets, search_environment
from components.curation.probes import probe, reaches_for_verdict
from components.curation.result import Flag, GateResult, Refused, Rejection, listed
from components.curation.rig import Rig, outcomes_of
from components.pool import Task, shown
from components.records import VERDICT, AssertionOutcome, VerifierReport
from components.sandbox import ExecResult, Sandbox, SandboxBackend

DETAIL_BYTES = 400
"""How much of a solution's output a rejection quotes."""
PASSED = AssertionOutcome.PASSED
Lists = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Assertion ids, fail to pass, pass to pass."""


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
    probes = None if pool.imported is None else pool.imported.probes
    lists: Lists = ((), (), ())
    flags: list[Flag] = []
    rejection, detail = None, ""
    try:
        secrets = None if probes is None else await asyncio.to_thread(Secrets.of, task)
        if secrets is not None:
            await asyncio.to_thread(search_environment, task, secrets)
        rig = Rig.of(task, backend, sandbox)
        evidence = await _gather(rig, pool)
        lists = judge(evidence, task.ref.assertion_ids)
        if probes is not None and secrets is not None:
            flags += await probe(rig, secrets, probes)
    except Refused as refusal:
        rejection, detail = refusal.rejection, refusal.detail
    seconds = round(time.monotonic() - started, 4)
    told = tuple(Flag(flag.kind, shown(flag.detail)) for flag in flags)
    return GateResult(task.ref.task_id, task.ref.digest, rejection, shown(detail), *lists, seconds, told)


def judge(evidence: Evidence, declared: Sequence[str] = ()) -> Lists:
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
    passed = {id_: [run[id_] is PASSED for run in evidence.noop] for id_ in ids}
    flaky = [id_ for id_, runs in passed.items() if any(runs) and not all(runs)]
    if flaky:
        raise Refused(Rejection.FLAKY, f"the untouched environment passes these only sometimes: {flaky}")
    fail_to_pass = tuple(id_ for id_ in ids if not all(passed[id_]))
    if not fail_to_pass:
        raise Refused(Rejection.NOOP_PASSES, "the untouched environment passes every assertion")
    return ids, fail_to_pass, tuple(id_ for id_ in ids if all(passed[id_]))


async def _gather(rig: Rig, pool: PoolConfig) -> Evidence:
    """Verifies the untouched box, then runs the solution in it and verifies again; as often as configured."""
    if rig.task.solution_dir is None:
        raise Refused(Rejection.NO_SOLUTION, "solution/solve.sh is missing: nothing shows that it can be solved")
    least = 2 if pool.imported is not None and pool.imported.probes is not None else 1
    noops, oracles = max(pool.noop_runs, least), max(pool.oracle_runs, least)
    noop: list[VerifierReport] = []
    oracle: list[VerifierReport] = []
    for run in range(max(noops, oracles)):
        async with rig.box() as box:
            if run < noops:
                noop.append((await rig.verify(box)).report)
                _require_unsolved(noop[-1])
            if run < oracles:
                oracle.append(await _solved(rig, box, run))
    if outcomes_of(oracle[0]).keys() == {VERDICT} and not (pool.imported is not None and pool.imported.binary_only):
        cause = oracle[0].parse_cause or f"{oracle[0].source} has a verdict alone"
        raise Refused(Rejection.BINARY_ONLY, f"the verifier names no assertion: {cause}")
    return Evidence([_untouched(report, oracle[0]) for report in noop], [outcomes_of(report) for report in oracle])


async def _solved(rig: Rig, box: Sandbox, run: int) -> VerifierReport:
    """The report on a box in which the solution was run: whole, or the task is refused."""
    result = await rig.solve(box)
    verification = await rig.verify(box)
    report = verification.report
    if not (failed := _failures(report)):
        reaches_for_verdict(rig.task, verification.left)
        return report
    detail = f"run {run + 1}: {listed(failed)}; {_ended(result)}"
    if run:
        raise Refused(Rejection.FLAKY, detail)
    async with rig.box() as another:  # a solution that fails now and then is another defect than one that fails
        await rig.solve(another)
        again = (await rig.verify(another)).report
    if outcomes_of(again) != outcomes_of(report) or again.outcome != report.outcome:
        raise Refused(Rejection.FLAKY, f"{detail}; and the next time: {listed(_failures(again)) or 'all passed'}")
    raise Refused(Rejection.ORACLE_FAILS, detail)


def _failures(report: VerifierReport) -> list[str]:
    """Why a report is not that of a solved task; nothing where it is."""
    failed = [f"{id_} {outcome}" for id_, outcome in outcomes_of(report).items() if outcome is not PASSED]
    if failed or report.outcome:
        return failed
    return [f"{report.source}: the verdict is 0 though every assertion passed"]


def _ended(result: ExecResult) -> str:
    ended = "timed out" if result.timed_out else f"exit {result.exit_code}"
    return f"solve.sh {ended}: {result.output[-DETAIL_BYTES:].decode('utf-8', 'replace').strip()}"


def _require_unsolved(report: VerifierReport) -> None:
    failed = [id_ for id_, outcome in report.assertions.items() if outcome is not PASSED]
    if report.outcome and failed:
        detail = f"the untouched environment is given the verdict 1, though it fails {listed(failed)}"
        raise Refused(Rejection.NOOP_PASSES, detail)


def _untouched(report: VerifierReport, solved: VerifierReport) -> Mapping[str, AssertionOutcome]:
    """Tests that cannot even be collected before the work is done name no assertion, and none of them passes."""
    if not report.assertions and report.outcome is False:
        return dict.fromkeys(outcomes_of(solved), AssertionOutcome.NOT_RUN)
    return outcomes_of(report)
