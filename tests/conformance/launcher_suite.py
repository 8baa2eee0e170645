"""What every `Launcher` that starts replicas does. A subclass gives the fixture `launch`; nothing may run after a test.

The servers are stand-ins for SGLang (`tests/sampler/fake.py`), which start in no time and are processes all the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.config import SamplerConfig
from components.errors import ServiceError
from components.sampler.fleet import Launcher, Serving
from tests.sampler import fake
from tests.sampler.fleet.parts import Launch


def serving(folder: Path, **environment: str) -> Serving:
    settings = fake.settings(folder, **environment)
    config = SamplerConfig(engine="sglang", sglang=settings, replicas=2, context_tokens=512, start_timeout_s=60)
    return Serving(config, Path("/models/m"), seed=0, routing=True, logs=folder / "logs")


def answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/health", timeout=5.0):
            return True
    except (urllib.error.URLError, OSError):
        return False


async def two(launcher: Launcher) -> list[str]:
    """The URLs of two replicas that start beside each other."""
    return list(await asyncio.gather(launcher.start(0, 1), launcher.start(1, 1)))


class LauncherSuite:
    """Inherit, give the fixture, and run."""

    @pytest.fixture(autouse=True)
    def nothing_left(self, tmp_path: Path) -> Iterator[None]:
        yield
        pids = [pid for replica in fake.started(tmp_path) for pid in replica["pids"]]
        assert pids
        assert all(fake.ended(pid, within_s=60) for pid in pids)

    async def test_a_replica_that_is_killed_is_told_with_its_last_words_and_comes_back_with_another_seed(
        self, launch: Launch, tmp_path: Path
    ) -> None:
        given = serving(tmp_path)
        launcher = launch(given)
        urls = await two(launcher)
        ends = [asyncio.ensure_future(launcher.ended(place)) for place in (0, 1)]
        assert len(set(urls)) == 2
        assert all(answers(url) for url in urls)
        os.kill(fake.started_at(tmp_path, urls[0])["pids"][0], signal.SIGKILL)
        assert await asyncio.wait_for(ends[0], 60) == f"{urls[0]} ended with SIGKILL"
        assert "GET /health" in await launcher.last_words(0)
        assert not ends[1].done()
        again = await launcher.start(0, 2)
        assert answers(again)
        assert answers(urls[1])
        arguments = fake.started_at(tmp_path, again)["arguments"]
        assert arguments[arguments.index("--random-seed") + 1] == str(given.seed_of(0, 2))
        ends[1].cancel()
        await launcher.close()
        assert not any(answers(url) for url in (again, urls[1]))

    @pytest.mark.nightly
    async def test_a_replica_has_ended_when_its_stop_returns_and_the_others_go_on(
        self, launch: Launch, tmp_path: Path
    ) -> None:
        launcher = launch(serving(tmp_path))
        urls = await two(launcher)
        await launcher.stop(0)
        assert fake.ended(fake.started_at(tmp_path, urls[0])["pids"][0], within_s=0), "its GPUs are given to the next"
        assert answers(urls[1])
        await launcher.close()

    async def test_a_replica_that_does_not_start_says_why(self, launch: Launch, tmp_path: Path) -> None:
        launcher = launch(serving(tmp_path, FAKE_END="1"))
        told = r"SGLang for /models/m: ended with exit code 1 (?s:.)*no such model, says the server"
        with pytest.raises(ServiceError, match=told):
            await launcher.start(0, 1)
        await launcher.close()

    @pytest.mark.nightly
    async def test_a_replica_that_nobody_waits_for_any_more_does_not_outlive_its_launcher(
        self, launch: Launch, tmp_path: Path
    ) -> None:
        launcher = launch(serving(tmp_path, FAKE_LOAD_S="5"))
        starting = asyncio.ensure_future(launcher.start(0, 1))
        async with asyncio.timeout(60):
            while not fake.started(tmp_path):
                await asyncio.sleep(0.05)
        starting.cancel()
        await launcher.close()
