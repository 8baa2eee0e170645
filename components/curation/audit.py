"""Runs the gates over a pool, and makes their verdict the pool's index.

Invariants: a result is journalled the moment it is known, so that an interrupted run repeats at most the tasks that
were in flight; a result counts for the exact version of the task it was measured on and for the same runs and probes.
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
from components.pool import Pool, write_index
from components.records import TaskRef
from components.sandbox import SandboxBackend

log = logging.getLogger(__name__)

ATTEMPTS = 2
"""Times a task is tried when the infrastructure fails."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The gates' verdict on a pool.

    Attributes:
        results: by task id, every task that has a result.
        faults: by task id, why the infrastructure could not give one.
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

    def close(self) -> None:
        self._file.close()

    def _learn(self, line: str) -> None:
        try:
            document: dict[str, Any] = json.loads(line)
            if document["runs"] == self._runs:
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
    on_result: Callable[[GateResult], None] | None = None,
) -> Audit:
    """Runs every task of `pool` that the journal does not know through the gates, `concurrency` at once.

    Raises:
        TaskError: a task's directory cannot be used, or is not the one that was indexed.
    """
    book = Journal(journal, config)
    results: dict[str, GateResult] = {}
    faults: dict[str, str] = {}
    waiting = iter(pool.refs)

    async def work() -> None:
        for ref in waiting:
            try:
                result = book.find(ref) or await _attempt(pool, ref, backend, config, sandbox)
            except InfraFault as fault:
                log.warning("gates: %s: %s", ref.task_id, fault)
                faults[ref.task_id] = str(fault)
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
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    finally:
        book.close()
    return Audit({ref.task_id: results[ref.task_id] for ref in pool.refs if ref.task_id in results}, faults)


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
            return await gate(task, backend, config, sandbox)
        except InfraFault as fault:
            log.warning("gates: %s, attempt %d: %s", ref.task_id, attempt + 1, fault)
    return await gate(task, backend, config, sandbox)
