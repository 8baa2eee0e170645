"""One task where it is tried: boxes of it, its solution in them, its verifier over them.

Invariant: what speaks against the task (it cannot be built, its verifier never says anything) is a `Refused`; every
other failure is the infrastructure's and says nothing about the task.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from components.config import SandboxConfig
from components.curation.result import UNPROBED, Flag, Refused, Rejection
from components.errors import InfraFault, TaskError
from components.harness import dismiss, verify_result
from components.harness.verification import Verification
from components.outcomes import AGAINST_TASK
from components.pool import Task
from components.records import VERDICT, AssertionOutcome, VerifierReport
from components.sandbox import ExecResult, FileEntry, Sandbox, SandboxBackend, SandboxSpec

DEFAULT_SOLUTION_S = 600.0
"""For tasks that set no agent timeout."""
SOLVE = "/solution/solve.sh"


class Budget:
    """The time that there is for one task."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        return time.monotonic() >= self._end

    def flag(self, what: str) -> Flag:
        """That there was no time for it."""
        return Flag(UNPROBED, f"{what}: the {self._seconds:g} s of the task's probes were over")


@dataclass(frozen=True, slots=True)
class Rig:
    """A task and where its boxes come from."""

    task: Task
    backend: SandboxBackend
    spec: SandboxSpec

    @classmethod
    def of(cls, task: Task, backend: SandboxBackend, sandbox: SandboxConfig) -> Rig:
        """Raises Refused when no box can be made of the task."""
        try:
            return cls(task, backend, task.sandbox_spec(sandbox))
        except TaskError as error:
            raise Refused(Rejection.BUILD, "; ".join(error.problems)) from error

    @asynccontextmanager
    async def box(self) -> AsyncIterator[Sandbox]:
        """A new box of the task.

        Raises:
            Refused: the task's image cannot be made.
        """
        try:
            box = await self.backend.start(self.spec)
        except InfraFault as fault:
            if fault.cause in AGAINST_TASK:
                raise Refused(Rejection.BUILD, fault.detail) from fault
            raise
        try:
            yield box
        finally:
            await dismiss(box)

    async def solve(self, box: Sandbox, script: str | None = None) -> ExecResult:
        """Runs the reference solution, or another `script` in its place."""
        if self.task.solution_dir is None:
            raise Refused(Rejection.NO_SOLUTION, "solution/solve.sh is missing: nothing shows that it can be solved")
        await box.put_tree(self.task.solution_dir, "/solution")
        if script is not None:
            await box.put({SOLVE: FileEntry(script.encode("utf-8", "surrogateescape"), 0o755)})
        return await box.exec(
            ["bash", SOLVE],
            timeout_s=self.task.manifest.agent_timeout_s or DEFAULT_SOLUTION_S,
            env=self.task.manifest.solution_env,
        )

    async def verify(self, box: Sandbox) -> Verification:
        """A verdict on the box.

        Raises:
            Refused: the verifier cannot be set up, or never ends.
        """
        try:
            verification = await self.ask(box)
            _ = verification.report
        except InfraFault as fault:
            if fault.cause in AGAINST_TASK:
                raise Refused(Rejection.NO_REPORT, str(fault)) from fault
            raise
        return verification

    async def passes(self, box: Sandbox) -> bool:
        """Whether the verifier accepts the box to the last assertion. One that then gives no verdict does not."""
        try:
            report = (await self.ask(box)).report
        except InfraFault as fault:
            if fault.cause in AGAINST_TASK:
                return False
            raise
        return report.outcome is True and set(outcomes_of(report).values()) == {AssertionOutcome.PASSED}

    async def ask(self, box: Sandbox) -> Verification:
        """The verifier's run over the box."""
        timeout_s = self.task.manifest.verifier_timeout_s
        return await verify_result(box, self.task, timeout_s=timeout_s, workdir=self.spec.workdir)


def outcomes_of(report: VerifierReport) -> Mapping[str, AssertionOutcome]:
    """The assertions of a report; of one that names none, its verdict as the only one."""
    if report.assertions or report.outcome is None:
        return report.assertions
    return {VERDICT: AssertionOutcome.PASSED if report.outcome else AssertionOutcome.FAILED}
