"""The curation stage over tasks from elsewhere, in real boxes, without Ray."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import pytest

from components.artifacts import LocalStore
from components.config import PoolConfig, load
from components.errors import TaskError
from components.jobs.curate import stage
from components.jobs.job import Job
from components.pool import Pool, Split, generate
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


def test_a_pool_that_is_too_small_for_its_campaign_is_refused_with_numbers(tmp_path: Path) -> None:
    write(tmp_path / "train", Split.TRAIN, 24), write(tmp_path / "heldout", Split.HELDOUT, 4)
    with pytest.raises(TaskError, match="heldout: 4 tasks were admitted, a step or an evaluation needs 6"):
        stage(job(tmp_path, "ppo.critic.warmup=null"))
