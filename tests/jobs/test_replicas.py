"""Replicas as actors of a real Ray: what any launcher and any fleet does, and what only these do."""

# ruff: noqa: F401, F811 (fixtures are imported by their names)
from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from components.jobs import replicas
from components.jobs.replicas import RayLauncher
from components.sampler.fleet import State
from tests import services
from tests.conformance.fleet_suite import FleetSuite, assert_whole
from tests.conformance.launcher_suite import LauncherSuite, answers, serving, two
from tests.conformance.sampler_suite import tokens
from tests.jobs.on_ray import actors
from tests.sampler import fake
from tests.sampler.conftest import Oracle, model_folder, oracle, other_folder, other_oracle
from tests.sampler.fleet.parts import Launch, draw, fleet_of, pid_of, until
from tests.sampler.real import SGLANG, START_TIMEOUT_S, real_sglang
from tests.waiting import eventually


@pytest.fixture(scope="module")
def address(ray_token: Path) -> Iterator[str]:
    """The session's Ray, of which this process is a driver for the time of the module."""
    handler = signal.getsignal(signal.SIGTERM)
    found = services.gcs()
    ray.init(found, log_to_driver=False, logging_level="warning")
    try:
        yield found
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def launch(address: str) -> Iterator[Launch]:
    yield RayLauncher
    eventually(lambda: not actors())


async def test_a_killed_replica_is_told_and_its_processes_are_gone_when_its_launcher_is_closed(
    launch: Launch, tmp_path: Path
) -> None:
    launcher = launch(serving(tmp_path))
    url = await launcher.start(0, 1)
    processes = fake.started_at(tmp_path, url)["pids"]
    ending = asyncio.ensure_future(launcher.ended(0))
    os.kill(processes[0], signal.SIGKILL)
    assert await asyncio.wait_for(ending, 60) == f"{url} ended with SIGKILL"
    await launcher.close()
    assert all(fake.ended(pid, within_s=10.0) for pid in processes)


@pytest.mark.nightly
@pytest.mark.timeout(600)
class TestRayLauncher(LauncherSuite):
    """Also what only actors do."""

    async def test_a_replica_ends_with_its_actor_which_is_told_and_another_one_takes_its_place(
        self, launch: Launch, tmp_path: Path
    ) -> None:
        launcher = launch(serving(tmp_path))
        urls = await two(launcher)
        server = fake.started_at(tmp_path, urls[0])["pids"][0]
        assert len(actors()) == 2
        (actor,) = actors() & {above.pid for above in psutil.Process(server).parents()}
        ending = asyncio.ensure_future(launcher.ended(0))
        os.kill(actor, signal.SIGKILL)
        assert (await asyncio.wait_for(ending, 60)).startswith("ended with its actor: ")
        assert await launcher.last_words(0) == ""
        assert fake.ended(server, within_s=10.0)
        assert answers(await launcher.start(0, 2))
        assert actor not in actors()
        await launcher.close()
        assert not list((tmp_path / "logs").iterdir()), "logs go with the replicas"

    def test_nothing_outlives_a_job_that_is_killed(self, launch: Launch, address: str, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "tests.jobs.ray_fleet", address, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            urls = job.stdout.readline().split()
            assert len(urls) == len(actors()) == 2
            assert all(answers(url) for url in urls)
            job.kill()
        eventually(lambda: not actors())

    async def test_a_replica_for_which_no_gpus_are_free_waits_and_says_so(
        self, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(replicas, "PATIENCE_S", 0.5)
        launcher = launch(serving(tmp_path))
        urls = await two(launcher)
        with caplog.at_level(logging.WARNING, "longshell"):
            waiting = asyncio.ensure_future(launcher.start(2, 1))
            async with asyncio.timeout(60):
                while "sampler 2 waits for a machine with 1 free GPUs" not in caplog.text:
                    await asyncio.sleep(0.1)
        assert not waiting.done()
        await launcher.stop(0)
        assert answers(await waiting)
        assert answers(urls[1])
        await launcher.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
class TestActors(FleetSuite):
    """Replicas of whatever machine Ray chooses."""


@real_sglang
async def test_a_stock_sglang_is_an_actor_and_all_its_processes_end_when_that_is_killed(
    launch: Launch, model_folder: Path, tmp_path: Path, oracle: Oracle
) -> None:
    told: list[str] = []
    given = {"replicas": 1, "max_restarts": 0, "start_timeout_s": START_TIMEOUT_S}
    async with fleet_of(launch, model_folder, tmp_path, told, engine="sglang", sglang=SGLANG, **given) as fleet:
        assert_whole(tokens(8, 20), await draw(fleet, "a", tokens(8, 20)), oracle, 8)
        (actor,) = actors()
        started = psutil.Process(actor).children(recursive=True)
        assert len(started) >= 3, "a guardian, a server and a scheduler, at least"
        os.kill(actor, signal.SIGKILL)
        await until(fleet, 0, State.GONE)
        assert told[0].startswith("sampler 0 ended with its actor: ")
        assert all(fake.ended(process.pid, within_s=30.0) for process in started)
