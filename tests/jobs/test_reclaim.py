"""A leg's samplers: those that die are started anew and get the leg's weights, those given by URL are taken over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from components.config import CampaignConfig, load
from components.errors import CheckpointError, ServiceError
from components.jobs.leg import Course, Leg
from components.jobs.world import _launcher, require_vocabulary
from components.sampler import ModelGeometry, SGLangClient, launch_sampler
from components.sampler.fleet import Fleet, Serving, State, open_fleet
from tests.conformance.publisher_suite import FolderSource, draw
from tests.sampler.conftest import model_folder, other_folder  # noqa: F401
from tests.sampler.fleet.parts import until

T = TypeVar("T")

MINIATURE = Path(__file__).parents[2] / "configs/miniature.yaml"
CONTEXT = 512
GIVEN = ("sampler.engine=sglang", "model.tie_word_embeddings=false")


class FleetSide:
    """The rollout side of a leg, as far as its samplers go: a fleet in an event loop of its own, without Ray."""

    def __init__(self, fleet: Fleet, launcher: Any, loop: asyncio.AbstractEventLoop, told: list[str]) -> None:
        self.fleet, self.launcher, self.told = fleet, launcher, told
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def hold(self) -> dict[int, str]:
        return self.run(self.fleet.hold())

    def release(self, version: int, weights: Path | None, lost: Mapping[int, str]) -> None:
        self.run(self.fleet.release(version, weights, lost))

    def kill(self, place: int) -> None:
        os.kill(self.launcher._servers[place].pid, signal.SIGKILL)

    def version_of(self, place: int, checkpoint: Path) -> int:
        """The version under which the replica draws, once it serves."""
        self.run(until(self.fleet, place, State.SERVING))
        return asyncio.run(version_of(self.fleet.url(place), checkpoint))


@contextmanager
def side_of(config: CampaignConfig, checkpoint: Path, folder: Path) -> Iterator[FleetSide]:
    loop, told = asyncio.new_event_loop(), list[str]()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = Serving(config.sampler, checkpoint, seed=0, routing=True, logs=folder)
    starting, opened = _launcher(serving), None
    side = FleetSide(None, None, loop, told)  # type: ignore[arg-type]
    try:
        side.launcher = side.run(starting.__aenter__())
        opened = open_fleet(serving, side.launcher, told.append)
        side.fleet = side.run(opened.__aenter__())
        yield side
        side.run(opened.__aexit__(None, None, None))
    finally:
        if side.launcher is not None:
            side.run(starting.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def leg(tmp_path: Path, config: CampaignConfig, checkpoint: Path, weights: Path, side: FleetSide) -> Leg:
    job = SimpleNamespace(config=config, folder=tmp_path)
    course, source = Course("rl", "train", total=1), FolderSource(weights)
    return Leg(job, course, source, side, checkpoint, None)  # type: ignore[arg-type]


async def version_of(url: str, checkpoint: Path) -> int:
    client = SGLangClient(url, model=ModelGeometry.read(checkpoint, CONTEXT))
    try:
        return (await draw(client)).weight_version
    finally:
        await client.close()


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
        given = load(MINIATURE, [*GIVEN, f"sampler.urls=[{server.url}]"])

        def job(checkpoint: Path) -> list[float]:
            with side_of(given, checkpoint, tmp_path) as side:
                began = time.monotonic()
                assert side.fleet.url(0) == server.url
                assert asyncio.run(path_of(server.url, checkpoint)) == str(checkpoint)
                time.sleep(0.3)
                assert asyncio.run(path_of(server.url, checkpoint)) == str(checkpoint)
                return [began, time.monotonic()]

        with ThreadPoolExecutor(2) as pool:
            spans = list(pool.map(job, (other_folder, model_folder)))
        (_, first_end), (second_start, _) = sorted(spans)
        assert first_end <= second_start
        deaf = load(MINIATURE, [*GIVEN, f"sampler.urls=[{server.url}]", "sampler.context_tokens=1024"])
        with (
            pytest.raises(ServiceError, match="its context is 512 tokens, 1024 are expected"),
            side_of(deaf, model_folder, tmp_path),
        ):
            pass


def test_a_dead_sampler_that_runs_by_itself_is_named(tmp_path: Path, model_folder: Path) -> None:  # noqa: F811
    gone = load(MINIATURE, [*GIVEN, "sampler.urls=[http://127.0.0.1:9]"])
    with (
        pytest.raises(ServiceError, match=r"replica 0 .*the sampler at http://127.0.0.1:9, which runs by itself"),
        side_of(gone, model_folder, tmp_path),
    ):
        pass


def test_ids_mean_the_same_to_tokenizer_sampler_and_trainer(tmp_path: Path) -> None:
    config = load(MINIATURE)
    for served, spelled, agree in ((768, 768, True), (768, 700, True), (768, 769, False), (1024, 768, False)):
        shape = {"vocab_size": served, "num_experts": 8, "num_hidden_layers": 2, "num_experts_per_tok": 2}
        (tmp_path / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 512}))
        spelling: Any = SimpleNamespace(vocab_size=spelled)
        if agree:
            require_vocabulary(config, tmp_path, spelling)
            continue
        said = rf"tokenizer has {spelled} tokens, its model .* {served}, and the trainer's \(model.vocab_size\) 768"
        with pytest.raises(CheckpointError, match=said):
            require_vocabulary(config, tmp_path, spelling)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["disk", "collective"])
def test_a_leg_goes_on_with_one_sampler_of_two_and_the_other_comes_back_with_the_steps_weights(
    tmp_path: Path,
    model_folder: Path,  # noqa: F811
    other_folder: Path,  # noqa: F811
    method: str,
) -> None:
    overrides = ["sampler.replicas=2", "sampler.slots=2", f"publish.method={method}", "publish.timeout_s=30"]
    config = load(MINIATURE, overrides)
    with side_of(config, model_folder, tmp_path) as side:
        running = leg(tmp_path, config, model_folder, other_folder, side)
        assert running._publish(1) == 0
        side.kill(1)
        side.run(until(side.fleet, 1, State.DOWN, State.STARTING))
        assert running._publish(2) == 1
        assert side.version_of(0, model_folder) == 2
        assert side.version_of(1, model_folder) == 2
        side.kill(1)
        assert running._publish(3) == 1
        assert side.version_of(1, model_folder) == 3
        assert running._publish(4) == 0
        assert [side.version_of(place, model_folder) for place in (0, 1)] == [4, 4]
