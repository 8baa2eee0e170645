"""A campaign whose store is a bucket of a real S3 server: specs, results, models and records go through it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.artifacts import S3Store
from components.cluster import JobSpec, request
from components.config import load
from components.errors import Exit
from components.pool import Pool
from tasks.plan import course
from tests.buckets import Server, bucket_server, s3_server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
MINIATURE = ROOT / "configs" / "miniature.yaml"
__all__ = ["bucket_server", "s3_server"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="lsb-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def store(bucket_server: Server, short: Path) -> S3Store:
    return S3Store(f"s3://{bucket_server.bucket()}/longshell", short / "cache")


def test_a_real_stage_reads_its_spec_from_a_bucket_and_leaves_its_pool_there(store: S3Store, short: Path) -> None:
    small = ["pool.train_tasks=6", "rollout.batch=4", "pool.heldout_tasks=2"]
    config = load(MINIATURE, [*small, "evaluation.trials=2", "evaluation.leg_trials=2"])
    spec = JobSpec("curate", "b-s1", 0, config.model_dump(mode="json"), {})
    document = {"stage": spec.stage, "campaign": spec.campaign, "index": 0, "config": spec.config, "inputs": {}}
    store.put_json(spec.key("spec.json"), {**document, "store": store.url, "result": spec.key("result.json")})
    environment = {**os.environ, "TMPDIR": str(short), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", request(spec, store.url).entrypoint], env=environment, capture_output=True, text=True
    )
    assert done.returncode == Exit.DONE, done.stdout + done.stderr
    result = store.get_json(spec.key("result.json"))
    assert (result["train"], result["heldout"]) == (6, 2)
    assert len(Pool(store.tree(result["pool"]) / "train")) == 6
    assert store.list("campaigns/b-s1") == sorted([spec.key("spec.json"), spec.key("result.json"), result["pool"]])


@pytest.mark.e2e
def test_a_whole_campaign_of_fake_stages_lives_in_a_bucket(store: S3Store, short: Path) -> None:
    overrides = ["rl.legs=1", "rl.leg_steps=2"]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")},
        "LONGSHELL_HOME": str(short / "home"),
        "LONGSHELL_STORE": store.url,
        "LONGSHELL_JOBS_PACKAGE": "tests.fake_jobs",
        "TMPDIR": str(short),
    }
    command = [sys.executable, "-m", "flows.campaign", f"--config={MINIATURE}", *overrides]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    *_, last = done.stdout.strip().splitlines()
    assert store.get_json("campaigns/miniature-s1/results.json") == json.loads(last)
    config = load(MINIATURE, overrides)
    for job in course(config):
        if job.exact:
            assert store.exists(job.spec(config).key("result.json")), job.task
    assert not (short / "home" / "store").exists()

    plan = subprocess.run([*command, "--dry-run"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert plan.returncode == 0, plan.stderr
    assert f"leaves {store.url}/campaigns/miniature-s1/rl/legs/1/checkpoint" in plan.stdout
