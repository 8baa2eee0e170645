"""The curation stage over tasks from elsewhere, in real boxes, without Ray."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from components.artifacts import LocalStore
from components.config import PoolConfig, load
from components.curation import GateResult, audit
from components.errors import FaultCause, InfraFault, TaskError
from components.jobs import aggregate, gates
from components.jobs.curate import stage
from components.jobs.job import Job
from components.pool import Pool, Split, Task, generate
from components.pool.directory import write_task
from tests.jobs.conftest import MINIATURE, SMALL


def write(folder: Path, split: Split, count: int) -> Path:
    for task in islice(generate(PoolConfig(max_subtasks=2), split, seed=9), count):
        write_task(task, folder / task.task_id)
    return folder


def job(folder: Path, *overrides: str) -> Job:
    alike = "jaccard: 1, near_duplicate: null, probes: null"
    sources = f"pool.imported={{train: [{folder}/train], heldout: [{folder}/heldout], {alike}}}"
    config = load(MINIATURE, [*SMALL, sources, *overrides])
    (folder / "job").mkdir(exist_ok=True)
    return Job("curate", "c", 0, config, {}, LocalStore(folder / "store"), folder / "job")


def test_imported_tasks_are_gated_and_the_rest_has_reasons(tmp_path: Path) -> None:
    train, heldout = write(tmp_path / "train", Split.TRAIN, 24), write(tmp_path / "heldout", Split.HELDOUT, 7)
    shutil.copytree(heldout / "heldout-00000", train / "copied")
    (heldout / "heldout-00003" / "solution" / "solve.sh").write_text("#!/bin/bash\nexit 3\n")
    (train / "train-00001" / "task.toml").unlink()

    result = stage(job(tmp_path, "pool.train_tasks=4", "ppo.critic.warmup={steps: 2, tasks: 5}"))
    reasons = {each["task"]: each["reason"] for each in result["rejections"]}
    expected = {"copied": "contaminated", "heldout-00003": "oracle_fails", "train-00001": "unusable"}
    assert expected.items() <= reasons.items()
    others = {reason for task, reason in reasons.items() if task not in expected}
    assert others <= {"contaminated"}, "generated tasks share sentences with a few others"
    assert (result["train"], result["warmup"], result["heldout"], result["faults"]) == (4, 5, 6, 0)
    assert result["accepted"] + result["rejected"] == 24 + 7 + 1
    pools = {name: Pool(LocalStore(tmp_path / "store").tree(result["pool"]) / name) for name in ("train", "warmup")}
    assert not {ref.task_id for ref in pools["train"].refs} & {ref.task_id for ref in pools["warmup"].refs}
    assert all(ref.fail_to_pass for pool in pools.values() for ref in pool.refs), "as the gates measured"
    counts = sorted(len(ref.fail_to_pass) for ref in pools["train"].refs)
    assert (result["assertions"]["tasks"], result["assertions"]["implied_scale"]) == (4, counts[-1])


def test_a_fault_fails_the_stage_after_all_other_tasks_and_the_next_try_asks_of_what_has_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such tasks were once left out for good: the stage had a result, which no later run asked for again."""
    for name, split in (("train", Split.TRAIN), ("heldout", Split.HELDOUT)):
        write(tmp_path / name, split, 7)
    faulty, asked = {"train-00002", "heldout-00003"}, list[str]()

    async def gate(task: Task, *_: object) -> GateResult:
        asked.append(task.ref.task_id)
        if task.ref.task_id in faulty:
            raise InfraFault(FaultCause.SANDBOX, "no box")
        return GateResult(task.ref.task_id, task.ref.digest, None, "", ("a",), ("a",))

    async def no_backend(*_: object) -> AsyncMock:
        return AsyncMock()

    monkeypatch.setattr(sys.modules[audit.__module__], "gate", gate)
    monkeypatch.setattr("components.jobs.gathering.open_backend", no_backend)
    made = job(tmp_path, "ppo.critic.warmup=null")
    gathered = {"candidates": aggregate.stage(made)["candidates"]}
    for name, begin in (("gates", gates.stage), ("curate", stage)):
        attempt = replace(made, inputs=gathered, folder=tmp_path / name)
        faulty.update(("train-00002", "heldout-00003"))
        asked.clear()
        for _ in range(2):
            with pytest.raises(
                InfraFault, match=r"heldout: 1 of 7 tasks have no verdict.*; train: 1 of \d+ tasks have"
            ):
                begin(attempt)
        faulty.clear()
        result = begin(attempt)
        assert {"train-00002", "heldout-00003"} == {task for task in asked if asked.count(task) > 1}
        assert (result["faults"], result["accepted"]) == (0, len(set(asked)))


def test_a_pool_that_is_too_small_for_its_campaign_is_refused_with_numbers(tmp_path: Path) -> None:
    write(tmp_path / "train", Split.TRAIN, 24), write(tmp_path / "heldout", Split.HELDOUT, 4)
    (tmp_path / "train" / "train-00001" / "task.toml").unlink()
    with pytest.raises(TaskError, match="heldout: 4 tasks were admitted, a step or an evaluation needs 6") as refused:
        stage(job(tmp_path, "ppo.critic.warmup=null"))
    assert "\n  - train-00001: unusable: " in str(refused.value), "who must mend the pool is told what of it"
