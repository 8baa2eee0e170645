"""The gates over real pools in real boxes."""

import json
import sys
from pathlib import Path
from typing import cast

import pytest

from components.config import PoolConfig
from components.curation import Audit, GateResult, Rejection, admit, audit
from components.curation.audit import ATTEMPTS, RUNS
from components.errors import FaultCause, InfraFault, TaskError
from components.outcomes import AGAINST_TASK
from components.pool import Pool, Task, index_folder
from components.sandbox import Sandbox, SandboxBackend, SandboxSpec
from tests.curation.conftest import LIMITS, BuildPool

CONFIG = PoolConfig()
AUDIT = sys.modules[audit.__module__]
NO_BACKEND = cast(SandboxBackend, None)
"""For gates that need none."""


async def run(pool: Pool, backend: SandboxBackend, journal: Path, config: PoolConfig = CONFIG, **kwargs) -> Audit:
    return await audit(pool, backend, config=config, sandbox=LIMITS, journal=journal, concurrency=4, **kwargs)


async def test_sound_tasks_are_accepted_with_their_assertion_lists(
    pool: Pool, backend: SandboxBackend, tmp_path: Path
) -> None:
    verdict = await run(pool, backend, tmp_path / "gates.jsonl")
    assert verdict.rejected == []
    assert verdict.faults == {}
    admitted = admit(pool, verdict)
    assert len(admitted) == len(pool)
    for ref in admitted.refs:
        assert ref.fail_to_pass
        assert set(ref.fail_to_pass) | set(ref.pass_to_pass) == set(ref.assertion_ids)
        assert all(id_.endswith(":kept") for id_ in ref.pass_to_pass), "only guards pass untouched"
        assert admitted.load(ref.task_id).ref == ref


async def test_a_broken_task_is_rejected_with_a_reason_a_person_can_check(
    write_pool: BuildPool, backend: SandboxBackend, tmp_path: Path
) -> None:
    folder = write_pool(6)
    solve, test = "solution/solve.sh", "tests/test.sh"
    breaks = {
        "train-00000": (solve, "#!/bin/bash\necho cannot find it\nexit 3\n"),
        "train-00001": (test, "#!/bin/bash\necho 'bash: pytest: command not found'\n"),
        "train-00002": ("environment/Dockerfile", "FROM x\nWORKDIR /app\nVOLUME /data\n"),
        "train-00003": (test, (folder / "train-00003" / test).read_text().replace("1-", "9-")),
        "train-00004": (test, '#!/bin/bash\nread -r n <&4; say() { printf \'{"nonce":"%s",%s}\\n\' "$n" "$1"; }\n'
                        'say \'"collected":["a"]\'; say \'"id":"a","outcome":"passed"\'; say \'"finished":true\'\n'),
    }  # fmt: skip
    for task, (path, text) in breaks.items():
        (folder / task / path).write_text(text)
    manifest = folder / "train-00004" / "task.toml"
    manifest.write_text("\n".join(line for line in manifest.read_text().split("\n") if "assertion_ids" not in line))
    pool = index_folder(folder)
    verdict = await run(pool, backend, tmp_path / "gates.jsonl")
    rejected = {result.task_id: (result.rejection, result.detail) for result in verdict.rejected}
    assert {task: reason for task, (reason, _) in rejected.items()} == {
        "train-00000": Rejection.ORACLE_FAILS,
        "train-00001": Rejection.NO_REPORT,
        "train-00002": Rejection.BUILD,
        "train-00003": Rejection.UNDECLARED,
        "train-00004": Rejection.NOOP_PASSES,
    }
    assert "exit 3: cannot find it" in rejected["train-00000"][1]
    assert "VOLUME is not supported" in rejected["train-00002"][1]
    assert verdict.summary()["rejected"] == 5
    assert verdict.summary()["accepted"] == 1
    assert [ref.task_id for ref in admit(pool, verdict).refs] == ["train-00005"]


async def test_an_oracle_that_works_only_once_is_flaky(
    write_pool: BuildPool, backend: SandboxBackend, tmp_path: Path
) -> None:
    folder = write_pool(1)
    solve = folder / "train-00000" / "solution" / "solve.sh"
    solve.write_text(solve.read_text().replace("cd /app", "[[ $HOSTNAME$RANDOM == *[13579] ]] && exit 7; cd /app"))
    verdict = await run(index_folder(folder), backend, tmp_path / "gates.jsonl", PoolConfig(oracle_runs=20))
    (result,) = verdict.rejected
    assert result.rejection in {Rejection.FLAKY, Rejection.ORACLE_FAILS}
    assert "exit 7" in result.detail


class Counting:
    """A backend that counts its boxes, and fails for a while when told to."""

    def __init__(self, inner: SandboxBackend, faults: int = 0) -> None:
        self.inner = inner
        self.started = 0
        self.faults = faults

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def isolation(self) -> str:
        return self.inner.isolation

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if self.faults:
            self.faults -= 1
            raise InfraFault(FaultCause.SANDBOX, "no space left")
        self.started += 1
        return await self.inner.start(spec)

    async def close(self) -> None:
        await self.inner.close()


async def test_an_interrupted_audit_repeats_only_what_has_no_result(
    pool: Pool, backend: SandboxBackend, tmp_path: Path
) -> None:
    journal = tmp_path / "gates.jsonl"
    seen: list[GateResult] = []
    await run(pool, backend, journal, on_result=seen.append)
    assert len(seen) == len(pool)
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:4]) + lines[4][:30])
    counting = Counting(backend)
    verdict = await run(pool, counting, journal)
    assert counting.started == 2
    assert len(verdict.accepted) == len(pool)
    again = Counting(backend)
    assert (await run(pool, again, journal)).results == verdict.results
    assert again.started == 0
    assert all(json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}"))


async def test_another_number_of_runs_or_another_version_is_measured_anew(
    pool: Pool, backend: SandboxBackend, tmp_path: Path
) -> None:
    journal = tmp_path / "gates.jsonl"
    await run(pool, backend, journal)
    counting = Counting(backend)
    await run(pool, counting, journal, PoolConfig(oracle_runs=2, noop_runs=1))
    assert counting.started == 2 * len(pool)


async def test_a_fault_is_no_rejection_and_a_passing_one_is_retried(
    pool: Pool, backend: SandboxBackend, tmp_path: Path
) -> None:
    verdict = await run(pool, Counting(backend, faults=1), tmp_path / "once.jsonl")
    assert (len(verdict.accepted), verdict.faults) == (len(pool), {})
    for _ in range(RUNS + 1):
        with pytest.raises(InfraFault, match=r"6 of 6 tasks have no verdict.*no space left") as caught:
            await run(pool, Counting(backend, faults=10_000), tmp_path / "always.jsonl")
        assert caught.value.cause is FaultCause.SANDBOX
    verdict = await run(pool, backend, tmp_path / "always.jsonl")
    assert (len(verdict.accepted), verdict.faults) == (len(pool), {}), "once they passed, faults say nothing"


class Gates:
    """Gates that accept every task but those that bring about a fault, as often as told."""

    def __init__(self, **faults: list[FaultCause]) -> None:
        self.faults = faults
        self.asked: list[str] = []

    async def __call__(self, task: Task, *_: object) -> GateResult:
        name = task.ref.task_id.removeprefix("train-0000")
        self.asked.append(name)
        if left := self.faults.get(f"t{name}"):
            cause = left.pop()
            if cause not in AGAINST_TASK:
                raise InfraFault(cause, "the box is gone")
            return GateResult(task.ref.task_id, task.ref.digest, Rejection.BUILD, "no registry")
        return GateResult(task.ref.task_id, task.ref.digest, None, "", ("a",), ("a",))


async def test_a_task_that_alone_brings_faults_about_is_left_out_and_holds_nobody_up_for_ever(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gates = Gates(t2=[FaultCause.SANDBOX] * 100)
    monkeypatch.setattr(AUDIT, "gate", gates)
    for _ in range(RUNS - 1):
        with pytest.raises(InfraFault, match=r"1 of 6 tasks have no verdict.*train-00002: sandbox: the box is gone"):
            await run(pool, NO_BACKEND, tmp_path / "gates.jsonl")
    assert sorted(gates.asked) == ["0", "1", "2", "2", "2", "2", "3", "4", "5"], "a repeated run asks of it alone"
    verdict = await run(pool, NO_BACKEND, tmp_path / "gates.jsonl")
    assert verdict.faults == {"train-00002": "sandbox: the box is gone"}
    assert len(verdict.accepted) == 5
    assert gates.asked[-3:] == ["2", "2", "0"], "beside it a sound one was run"


async def test_no_task_is_left_out_for_a_fault_that_a_sound_one_meets_too(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gates = Gates(t2=[FaultCause.SANDBOX] * 100)
    monkeypatch.setattr(AUDIT, "gate", gates)
    for turn in range(RUNS + 2):
        gates.faults["t0"] = [FaultCause.SANDBOX] * (turn > 0)
        with pytest.raises(InfraFault, match="1 of 6 tasks have no verdict"):
            await run(pool, NO_BACKEND, tmp_path / "gates.jsonl")
    gates.faults = {}
    assert len((await run(pool, NO_BACKEND, tmp_path / "gates.jsonl")).accepted) == 6


async def test_a_fault_that_speaks_against_a_task_is_its_rejection_only_when_it_is_met_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gates = Gates(t1=[FaultCause.IMAGE], t2=[FaultCause.IMAGE] * ATTEMPTS)
    monkeypatch.setattr(AUDIT, "gate", gates)
    verdict = await run(pool, NO_BACKEND, tmp_path / "gates.jsonl")
    assert [(each.task_id, each.detail) for each in verdict.rejected] == [("train-00002", "no registry")]
    assert (len(verdict.accepted), verdict.faults) == (5, {})


async def test_a_pool_of_which_nothing_is_accepted_keeps_its_index(
    write_pool: BuildPool, backend: SandboxBackend, tmp_path: Path
) -> None:
    folder = write_pool(1)
    (folder / "train-00000" / "solution" / "solve.sh").write_text("exit 1\n")
    pool = index_folder(folder)
    verdict = await run(pool, backend, tmp_path / "gates.jsonl")
    with pytest.raises(TaskError, match="no task was accepted"):
        admit(pool, verdict)
    assert Pool(folder).refs == pool.refs


async def test_a_task_without_a_solution_is_rejected(
    write_pool: BuildPool, backend: SandboxBackend, tmp_path: Path
) -> None:
    folder = write_pool(1)
    (folder / "train-00000" / "solution" / "solve.sh").unlink()
    (folder / "train-00000" / "solution").rmdir()
    verdict = await run(index_folder(folder), backend, tmp_path / "gates.jsonl")
    assert [result.rejection for result in verdict.rejected] == [Rejection.NO_SOLUTION]
