"""A leg's sampler: one that dies is started anew with the barrier's weights, one that runs by itself is taken over."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.config import CampaignConfig, load
from components.errors import ServiceError
from components.jobs.leg import Course, Leg
from components.jobs.world import OpenSampler, open_sampler
from components.sampler import ModelGeometry, SGLangClient, launch_sampler
from tests.conformance.publisher_suite import FolderSource, draw
from tests.sampler.conftest import model_folder, other_folder  # noqa: F401

MINIATURE = Path(__file__).parents[2] / "configs/miniature.yaml"
CONTEXT = 512


def leg(tmp_path: Path, config: CampaignConfig, checkpoint: Path, weights: Path, sampler: OpenSampler) -> Any:
    job = SimpleNamespace(config=config, folder=tmp_path)
    course, source = Course("rl", "train", total=1), FolderSource(weights)
    return Leg(job, course, source, None, checkpoint, sampler, None)  # type: ignore[arg-type]


async def path_of(url: str, checkpoint: Path) -> str:
    client = SGLangClient(url, model=ModelGeometry.read(checkpoint, CONTEXT))
    try:
        await draw(client)
        return (await client.info()).model_path
    finally:
        await client.close()


def test_a_sampler_that_runs_by_itself_serves_the_jobs_checkpoint_and_one_job_at_a_time(
    tmp_path: Path,
    model_folder: Path,  # noqa: F811
    other_folder: Path,  # noqa: F811
) -> None:
    config = load(MINIATURE, ["sampler.slots=2"])
    with launch_sampler(config.sampler, model_folder, seed=0, routing=True, log_path=tmp_path / "log") as server:
        given = load(MINIATURE, ["sampler.engine=sglang", f"sampler.urls=[{server.url}]"])

        def job(checkpoint: Path) -> list[float]:
            with open_sampler(given, checkpoint, seed=0, routing=True, log=tmp_path / "unused") as sampler:
                began = time.monotonic()
                assert (sampler.url, sampler.server) == (server.url, None)
                assert asyncio.run(path_of(server.url, checkpoint)) == str(checkpoint)
                time.sleep(0.3)
                assert asyncio.run(path_of(server.url, checkpoint)) == str(checkpoint)
                return [began, time.monotonic()]

        with ThreadPoolExecutor(2) as pool:
            spans = list(pool.map(job, (other_folder, model_folder)))
        (_, first_end), (second_start, _) = sorted(spans)
        assert first_end <= second_start
        deaf = load(MINIATURE, ["sampler.engine=sglang", f"sampler.urls=[{server.url}]", "sampler.context_tokens=1024"])
        with (
            pytest.raises(ServiceError, match="its context is 512 tokens, 1024 are expected"),
            open_sampler(deaf, model_folder, seed=0, routing=True, log=tmp_path / "unused"),
        ):
            pass


def test_a_dead_sampler_that_runs_by_itself_ends_the_leg_by_name(tmp_path: Path, model_folder: Path) -> None:  # noqa: F811
    config = load(MINIATURE)
    gone = leg(tmp_path, config, model_folder, model_folder, OpenSampler("http://127.0.0.1:9", None))
    with pytest.raises(ServiceError, match="was not started from here"):
        gone._publish(1)
