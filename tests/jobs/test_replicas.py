"""Replicas as Ray actors, on the tests' own Ray head."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from components.artifacts import LocalStore
from components.cluster import Cluster, JobSpec
from components.config import load
from tests import services
from tests.jobs.conftest import MINIATURE
from tests.sampler.conftest import model_folder  # noqa: F401

RAY = ("sampler.replicas=2", "sampler.placement=ray", "sampler.slots=2", "publish.method=collective")


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_replicas_are_actors_that_come_back_when_they_or_their_actors_are_killed_and_end_with_the_job(
    model_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    config = load(MINIATURE, [*RAY, "sampler.start_timeout_s=120"])
    cluster = Cluster(services.ray(), LocalStore(tmp_path / "store"), token=services.token(), package="tests.jobs")
    spec = JobSpec("ray_fleet", "replicas", 0, config.model_dump(mode="json"), {"folder": str(model_folder)})
    submission = cluster.submit(spec, {})
    seen = cluster.follow(spec, submission.id, lambda line: None, lambda: None)
    assert len(set(seen["owners"])) == 3, "each has a process of its own"
    assert (seen["first"], seen["meanwhile"], seen["again"]) == ([4, 4], 4, [4, 4])
    assert seen["places"] == [0, 1], "both serve"
    assert "ended with SIGKILL" in seen["told"][0]
    assert "serving" in seen["told"][0], "the end of its log"
    assert any("ended with its actor" in line for line in seen["told"])
    assert sum("runs again" in line for line in seen["told"]) == 2
    assert len(set(seen["servers"])) == 4
    assert not any(psutil.pid_exists(pid) for pid in seen["servers"]), "nothing outlives the job"
