"""Runs the gates over a pool, and makes their verdict the pool's index.

Invariants: a result is journalled the moment it is known, so that an interrupted run repeats at most the tasks that
were in flight; a result counts for the exact version of the task it was measured on and for the same runs and probes;
a pool is never smaller for a fault of the infrastructure.

What a fault does depends on what can have brought it about. An image that cannot be built and a verifier that gives no
verdict (`components.outcomes.AGAINST_TASK`) are seen at one task and told of it: met in each of `ATTEMPTS` tries they
are its rejection, with the fault's words. Every other fault may be anyone's. It ends the run with that fault after all
other tasks have their result, so that whoever drives the run tries it again, which costs the tasks without a result
alone. But a task can bring about these, too: it fills its box, or ends what serves it. So each run that a task ends
without a result is journalled, and from the `RUNS`th on, which are minutes apart, the gates are run over a sound task
beside it: where they work, the fault is the task's, which is left out with it; where they do not, or where no task is
known to be sound, nothing is concluded and the fault is raised as before.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from components.config import PoolConfig, SandboxConfig
from components.curation.gates import gate
from components.curation.result import GateResult, Rejection
from components.errors import InfraFault, TaskError
from components.pool import Pool, Task, shown, write_index
from components.records import TaskRef
from components.sandbox import SandboxBackend

log = logging.getLogger(__name__)

ATTEMPTS = 2
"""Times a task is tried in one run when the infrastructure fails, or may have."""
RUNS = 3
"""Runs without a result after which a task may be at fault itself: one less than the tries of a flow task, which then
does not fail for it."""
FAULT = "fault"
"""Reason of a task that is left out because it keeps the gates from giving a result."""
DOUBTFUL = frozenset({Rejection.BUILD, Rejection.NO_REPORT})
"""Rejections that are faults of the causes that speak against a task."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The gates' verdict on a pool.

    Attributes:
        results: by task id, every task that has a result.
        faults: by task id, the fault by which a task prevents its own result.
    """

    results: Mapping[str, GateResult]
    faults: Mapping[str, str]

    @property
    def accepted(self) -> list[GateResult]:
        return [result for result in self.results.values() if result.rejection is None]

    @property
    def rejected(self) -> list[GateResult]:
        return [result for result in self.results.values() if result.rejection is not None]

    def summary(self) -> dict[str, int]:
        """Counts: accepted, faults, and one entry a reason of rejection."""
        reasons = Counter(result.rejection for result in self.rejected)
        counts = {f"rejected/{reason}": reasons[reason] for reason in Rejection}
        return {"accepted": len(self.accepted), "rejected": len(self.rejected), "faults": len(self.faults), **counts}


class Journal:
    """Results on disk, one JSON line each. The torn last line of a killed run is dropped."""

    def __init__(self, path: Path, config: PoolConfig) -> None:
        self._path = path
        self._runs = _measured_by(config)
        self._known: dict[tuple[str, str], GateResult] = {}
        self._faulted: Counter[tuple[str, str]] = Counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            self._learn(line)
        self._file = path.open("a", encoding="utf-8")
        if text and not text.endswith("\n"):
            self._file.write("\n")

    def find(self, ref: TaskRef) -> GateResult | None:
        """The result for exactly this version of the task."""
        return self._known.get((ref.task_id, ref.digest))

    def add(self, result: GateResult) -> None:
        self._file.write(json.dumps({"runs": self._runs, **result.to_json()}) + "\n")
        self._file.flush()
        self._known[result.task_id, result.digest] = result

    def add_fault(self, ref: TaskRef, fault: InfraFault) -> int:
        """Notes that a run ends without a result for the task; tells how many have."""
        line = {"runs": self._runs, "task_id": ref.task_id, "digest": ref.digest, "fault": shown(str(fault))}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._faulted[ref.task_id, ref.digest] += 1
        return self._faulted[ref.task_id, ref.digest]

    def close(self) -> None:
        self._file.close()

    def _learn(self, line: str) -> None:
        try:
            document: dict[str, Any] = json.loads(line)
            if document["runs"] == self._runs and "fault" in document:
                self._faulted[document["task_id"], document["digest"]] += 1
            elif document["runs"] == self._runs:
                result = GateResult.from_json(document)
                self._known[result.task_id, result.digest] = result
        except (ValueError, KeyError, TypeError):
            log.warning("%s: a line that is no result is left out: %.80r", self._path, line)


def _measured_by(config: PoolConfig) -> list[Any]:
    """What a result depends on besides the task, as JSON."""
    imported = config.imported
    if imported is None:
        return [config.noop_runs, config.oracle_runs]
    probes = None if imported.probes is None else imported.probes.model_dump(mode="json")
    return [config.noop_runs, config.oracle_runs, imported.binary_only, probes]


async def audit(
    pool: Pool,
    backend: SandboxBackend,
    *,
    config: PoolConfig,
    sandbox: SandboxConfig,
    journal: Path,
    concurrency: int,
    sound: Task | None = None,
    on_result: Callable[[GateResult], None] | None = None,
) -> Audit:
    """Runs every task of `pool` that the journal does not know through the gates, `concurrency` at once.

    Args:
        sound: a task that the gates accepted once, for pools of which they accept none.

    Raises:
        TaskError: a task's directory cannot be used, or is not the one that was indexed.
        InfraFault: tasks have no result, and nothing shows that it is their own doing. The same call goes on from
            there.
    """
    book = Journal(journal, config)
    results: dict[str, GateResult] = {}
    faults: dict[str, InfraFault] = {}
    waiting = iter(pool.refs)

    async def work() -> None:
        for ref in waiting:
            try:
                result = book.find(ref) or await _attempt(pool, ref, backend, config, sandbox)
            except InfraFault as fault:
                log.warning("gates: %s: %s", ref.task_id, fault)
                faults[ref.task_id] = fault
                continue
            if book.find(ref) is None:
                book.add(result)
            results[ref.task_id] = result
            if on_result is not None:
                on_result(result)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        found = Audit(
            {ref.task_id: results[ref.task_id] for ref in pool.refs if ref.task_id in results},
            {task: str(fault) for task, fault in faults.items()},
        )
        if faults:
            runs = [book.add_fault(ref, faults[ref.task_id]) for ref in pool.refs if ref.task_id in faults]
            beside = pool.load(found.accepted[0].task_id) if found.accepted else sound
            if min(runs) < RUNS or beside is None or not await _works(beside, backend, config, sandbox):
                raise _no_verdict(faults, len(pool))
        return found
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    finally:
        book.close()


def admit(pool: Pool, verdict: Audit) -> Pool:
    """Rewrites the index of `pool` to its accepted tasks, with the assertion lists that were measured.

    Raises:
        TaskError: no task was accepted; the index stays as it was.
    """
    if not verdict.accepted:
        reasons = [f"{result.task_id}: {result.rejection}: {result.detail}" for result in verdict.rejected[:10]]
        raise TaskError(str(pool.folder), ["no task was accepted", *reasons])
    return write_index(
        pool.folder,
        [
            with_assertions(ref, result)
            for ref in pool.refs
            if (result := verdict.results.get(ref.task_id)) is not None and result.rejection is None
        ],
    )


def with_assertions(ref: TaskRef, result: GateResult) -> TaskRef:
    """`ref` with the assertion lists that were measured."""
    return replace(
        ref,
        assertion_ids=result.assertion_ids,
        fail_to_pass=result.fail_to_pass,
        pass_to_pass=result.pass_to_pass,
    )


async def _attempt(
    pool: Pool, ref: TaskRef, backend: SandboxBackend, config: PoolConfig, sandbox: SandboxConfig
) -> GateResult:
    task = pool.load(ref.task_id)
    for attempt in range(ATTEMPTS - 1):
        try:
            result = await gate(task, backend, config, sandbox)
        except InfraFault as fault:
            log.warning("gates: %s, attempt %d: %s", ref.task_id, attempt + 1, fault)
            continue
        if result.rejection not in DOUBTFUL:
            return result
        log.warning("gates: %s, attempt %d: %s: %s", ref.task_id, attempt + 1, result.rejection, result.detail)
    return await gate(task, backend, config, sandbox)


async def _works(sound: Task, backend: SandboxBackend, config: PoolConfig, sandbox: SandboxConfig) -> bool:
    """Whether the gates still accept a task that they accepted once."""
    try:
        return (await gate(sound, backend, config, sandbox)).rejection is None
    except InfraFault as fault:
        log.warning("gates: %s, which is sound: %s", sound.ref.task_id, fault)
        return False


def _no_verdict(faults: Mapping[str, InfraFault], tasks: int) -> InfraFault:
    told = "; ".join(f"{task}: {fault}" for task, fault in list(faults.items())[:3])
    cause = next(iter(faults.values())).cause
    return InfraFault(cause, f"{len(faults)} of {tasks} tasks have no verdict, a later run asks again: {told}")
