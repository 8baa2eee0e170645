"""Grown pools: made by the job, and trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import load
from components.jobs.curate import stage as curate
from components.jobs.job import Job
from components.jobs.synthesize import stage
from components.pool import Pool, Split
from components.rollout import load_batch
from tests.jobs.conftest import MINIATURE, SMALL, SmallCampaign
from tests.jobs.test_curate import write
from tests.synthesis.conftest import root_pool


def synthesis(store: LocalStore, folder: Path, *overrides: str) -> Job:
    config = load(MINIATURE, [*SMALL, *overrides])
    return Job("synthesize", "c", 0, config, {"pool": "curated"}, store, folder)


def test_a_pool_is_grown_into_the_store_and_a_later_attempt_ends_in_the_same(tmp_path: Path) -> None:
    store, folder = LocalStore(tmp_path / "store"), tmp_path / "job"
    folder.mkdir()
    root_pool(tmp_path / "pool" / "train", 8)
    store.put_tree("curated", tmp_path / "pool")
    result = stage(synthesis(store, folder, "synthesis={rounds: 1, tasks: 3}"))
    assert (result["tasks"], result["rejections"]) == (3, [])
    assert [row["accepted"] for row in result["rounds"]] == [3]
    grown = Pool(store.tree(result["grown"]))
    assert {path.name for path in grown.folder.iterdir()} == {*(ref.task_id for ref in grown.refs), "pool.parquet"}
    record = synthesis(store, folder).record("synthesize", 0)
    assert record["metrics"]["synthesis/accepted"] == 3
    assert stage(synthesis(store, folder, "synthesis={rounds: 1, tasks: 3}")) == result
    assert synthesis(store, folder).record("synthesize", 0) == record


@pytest.mark.nightly
def test_what_was_grown_comes_in_through_an_import_with_its_lineage(tmp_path: Path) -> None:
    store, folder = LocalStore(tmp_path / "store"), tmp_path / "job"
    folder.mkdir()
    root_pool(tmp_path / "pool" / "train", 12)
    store.put_tree("curated", tmp_path / "pool")
    made = stage(synthesis(store, folder, "synthesis={rounds: 2, tasks: 6}"))
    heldout = write(tmp_path / "heldout", Split.HELDOUT, 7)
    sources = f"train: [{store.address(made['grown'])}], heldout: [{heldout}]"
    bounds = "jaccard: 1, near_duplicate: null, probes: null"
    config = load(MINIATURE, [*SMALL, f"pool.imported={{{sources}, {bounds}}}", "ppo.critic.warmup=null"])
    (tmp_path / "curate").mkdir()
    result = curate(Job("curate", "c", 1, config, {}, store, tmp_path / "curate"))
    before = {ref.task_id: ref for ref in Pool(store.tree(made["grown"])).refs}
    after = {ref.task_id: ref for ref in Pool(store.tree(result["pool"]) / "train").refs}
    assert len(after) >= 8
    for task, ref in after.items():
        for name in ("digest", "lineage", "parents", "operator", "round", "fail_to_pass", "pass_to_pass"):
            assert getattr(ref, name) == getattr(before[task], name)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_leg_trains_on_grown_tasks_and_its_ledger_tells_their_depth(
    campaign: SmallCampaign, pool: dict[str, Any], base: dict[str, Any], tmp_path: Path
) -> None:
    growing = campaign.variant("growing", "synthesis={rounds: 2, tasks: 5}")
    made = growing.run("synthesize", {"pool": pool["pool"]})
    assert made["tasks"] == 10
    heldout = write(tmp_path / "heldout", Split.HELDOUT, 7)
    bounds = "jaccard: 1, near_duplicate: null, probes: null"
    sources = f"{{train: [{campaign.store.address(made['grown'])}], heldout: [{heldout}], {bounds}}}"
    wider = ("harness.max_turns=12", "harness.max_context_tokens=1024", "sampler.context_tokens=1024")
    training = campaign.variant(
        "grown", f"pool.imported={sources}", "pool.train_tasks=10", "rl.leg_steps=3", "ppo.critic.warmup=null", *wider
    )
    curated = training.run("curate", {})
    refs = {ref.task_id: ref for ref in Pool(campaign.store.tree(curated["pool"]) / "train").refs}
    assert {len(ref.lineage) for ref in refs.values()} == {1, 2}
    assert all(ref.parents and ref.operator for ref in refs.values())
    inputs = {"pool": curated["pool"], "checkpoint": base["checkpoint"], "state": None, "critic": None, "first_step": 0}
    result = training.run("rl", inputs, index=1)
    assert result["checkpoint"]
    seen: set[int] = set()
    for step in range(3):
        metrics = training.record(step)["metrics"]
        rows = load_batch(campaign.store.tree(f"campaigns/{training.name}/rl/batches/{step:06d}")).ledger.rows
        seen |= {row.lineage_depth for row in rows}
        assert {row.lineage_depth for row in rows} == {len(refs[row.task_id].lineage) for row in rows}
        depths = {name.rsplit(".", 1)[1] for name in metrics if "cancelled_by/lineage_depth." in name}
        assert depths == {str(row.lineage_depth) for row in rows}
    assert seen == {1, 2}
