"""Rounds in real boxes: what is accepted was run, and a run that is interrupted repeats nothing."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from components.config import PoolConfig, SynthesisConfig
from components.curation import FAULT, GateResult, audit, gate
from components.curation.audit import RUNS
from components.errors import FaultCause, InfraFault, TaskError
from components.pool import Pool, Task, import_tasks, load_task
from components.sandbox import Sandbox, SandboxBackend, SandboxSpec
from components.synthesis import RoundReport, World, open_run, synthesize
from components.synthesis.__main__ import main
from tests.synthesis.conftest import LIMITS, root_pool, write_foreign

SMALL = SynthesisConfig(rounds=2, tasks=4)


class Counting:
    """A backend that counts its boxes, and fails from one of them on."""

    def __init__(self, inner: SandboxBackend, fails_from: int | None = None) -> None:
        self.inner, self.started, self.fails_from = inner, 0, fails_from
        self.name, self.isolation = inner.name, inner.isolation

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if self.fails_from is not None and self.started >= self.fails_from:
            raise InfraFault(FaultCause.SANDBOX, "no more boxes")
        self.started += 1
        return await self.inner.start(spec)

    async def close(self) -> None:
        await self.inner.close()


async def grow(
    source: Path, folder: Path, backend: SandboxBackend, config: SynthesisConfig = SMALL, seed: int = 1
) -> list[RoundReport]:
    pool = open_run(source, folder, config, seed)
    return await synthesize(pool, folder, World(backend, LIMITS, PoolConfig(), 4), config, seed=seed)


def digests(folder: Path) -> dict[str, str]:
    return {ref.task_id: ref.digest for ref in Pool(folder).refs}


async def test_a_draft_that_keeps_the_gates_from_a_verdict_is_told_and_ends_no_run_for_ever(
    backend: SandboxBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def faulting(task: Task, *where: Any) -> GateResult:
        if task.ref.task_id == "grown-1-00000":
            raise InfraFault(FaultCause.SANDBOX, "the box is gone")
        return await gate(task, *where)

    monkeypatch.setattr(sys.modules[audit.__module__], "gate", faulting)
    source, few = root_pool(tmp_path / "pool", 4).folder, SynthesisConfig(rounds=1, tasks=2, waves=1)
    for _ in range(RUNS - 1):
        with pytest.raises(InfraFault, match="1 of 2 tasks have no verdict, a later run asks again: grown-1-00000"):
            await grow(source, tmp_path / "grown", backend, few)
    (report,) = await grow(source, tmp_path / "grown", backend, few)
    assert [(fate.task, fate.reason) for fate in report.fates] == [("grown-1-00000", FAULT), ("grown-1-00001", "")]


async def test_rounds_make_longer_tasks_and_an_interrupted_run_ends_in_the_same_ones(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    source, folder = root_pool(tmp_path / "pool", 12).folder, tmp_path / "grown"
    before = sorted(path.stat().st_mtime_ns for path in source.rglob("*"))
    broken = Counting(backend, fails_from=6)
    with pytest.raises(InfraFault, match="have no verdict, a later run asks again"):
        await grow(source, folder, broken)
    assert set(digests(folder)) == {"grown-1-00000", "grown-1-00001", "grown-1-00002", "grown-1-00003"}
    going_on = Counting(backend)
    reports = await grow(source, folder, going_on)
    assert broken.started + going_on.started == 8, "every task was run once"
    again = Counting(backend)
    assert await grow(source, folder, again) == reports
    assert again.started == 0
    assert [(report.accepted, len(report.fates)) for report in reports] == [(4, 4), (4, 4)]
    grown = Pool(folder)
    assert len(grown) == 8
    for ref in grown.refs:
        assert grown.load(ref.task_id).ref == ref
        assert (ref.round, str(len(ref.lineage))) == (ref.task_id.split("-")[1],) * 2
        assert ref.parents[0] == ref.lineage[-1]
        assert ref.fail_to_pass
    assert before == sorted(path.stat().st_mtime_ns for path in source.rglob("*")), "the pool is only read"
    told = [json.loads(line) for line in (folder / ".synthesis" / "proposals.jsonl").read_text().splitlines()]
    assert [each["task"] for each in told] == [ref.task_id for ref in grown.refs]
    assert import_tasks([folder], tmp_path / "imported") == []
    assert {path.name for path in (tmp_path / "imported").iterdir()} == set(digests(folder))


async def test_a_task_in_another_dialect_goes_on_in_sentences_with_its_own_tests_unchanged(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    origin = write_foreign(tmp_path / "pool" / "report")
    reports = await grow(tmp_path / "pool", tmp_path / "grown", backend, SynthesisConfig(rounds=2, tasks=2))
    assert [report.accepted for report in reports] == [2, 2]
    grown = Pool(tmp_path / "grown")
    for ref in grown.refs:
        task = load_task(grown.folder / ref.task_id)
        assert task.instruction.startswith((origin / "instruction.md").read_text().rstrip())
        assert "\n1:" in task.instruction
        assert (task.path / "tests" / "origin.sh").read_text() == (origin / "tests" / "test.sh").read_text()
        assert task.metadata["author"] == 'Ä "x"'
        assert "origin:verdict" in ref.fail_to_pass
        assert len(ref.fail_to_pass) >= 3
        assert "moment" not in task.instruction, "what differs from run to run is no input"
    last = [ref for ref in grown.refs if ref.round == "2"]
    assert all("\n2:" in load_task(grown.folder / ref.task_id).instruction for ref in last)


def test_another_run_is_refused_where_one_is(tmp_path: Path) -> None:
    source = root_pool(tmp_path / "pool", 3).folder
    open_run(source, tmp_path / "grown", SMALL, 1)
    open_run(source, tmp_path / "grown", SMALL, 1)
    with pytest.raises(TaskError, match="seed: 1 there, 2 here"):
        open_run(source, tmp_path / "grown", SMALL, 2)
    with pytest.raises(TaskError, match="is not empty"):
        open_run(source, source, SMALL, 1)


def test_the_command_says_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = root_pool(tmp_path / "pool", 1).folder
    assert main([str(source), "--into", str(tmp_path / "grown"), "--rounds", "0"]) == 2
    assert "--rounds: Input should be greater than or equal to 1" in capsys.readouterr().err
    assert main([str(tmp_path / "none"), "--into", str(tmp_path / "grown")]) == 2
    assert "none" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_three_rounds_lengthen_tasks_each_time_within_their_caps(backend: SandboxBackend, tmp_path: Path) -> None:
    pool = root_pool(tmp_path / "pool", 60)
    config = SynthesisConfig(rounds=3, tasks=40, per_parent=3, per_category=25, per_family=15)
    reports = await grow(pool.folder, tmp_path / "grown", backend, config)
    sizes = [reports[0].before, *(report.after for report in reports)]
    for before, after in itertools.pairwise(sizes):
        assert before is not None
        assert after is not None
        assert (after.turns > before.turns, after.assertions > before.assertions) == (True, True)
    assert all(report.share >= 0.6 and report.accepted >= 30 for report in reports), [str(each) for each in reports]
    grown = Pool(tmp_path / "grown")
    known = {ref.task_id: ref for ref in pool.refs} | {ref.task_id: ref for ref in grown.refs}
    children = Counter(parent for ref in grown.refs for parent in ref.parents)
    assert max(children.values()) <= config.per_parent
    for number in range(1, config.rounds + 1):
        of_round = [ref for ref in grown.refs if ref.round == str(number)]
        assert max(Counter(ref.category for ref in of_round).values()) <= config.per_category
        assert max(Counter(ref.operator.split("-")[0] for ref in of_round).values()) <= config.per_family
        assert median(len(ref.lineage) for ref in of_round) == number
    for ref in grown.refs:
        assert set(ref.parents) | set(ref.lineage) <= set(known)
        assert known[ref.parents[0]].lineage == ref.lineage[:-1]
        assert len(ref.fail_to_pass) > len(known[ref.parents[0]].fail_to_pass)
