"""A fleet of child processes, and one of servers that run by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from components.config import HealthConfig, SamplerConfig
from components.errors import ServiceError
from components.sampler import launch_sampler
from components.sampler.fleet import ChildLauncher, Fleet, GivenLauncher, Serving, State, open_fleet
from tests.conformance.fleet_suite import FleetSuite, assert_whole
from tests.conformance.launcher_suite import LauncherSuite
from tests.conformance.sampler_suite import tokens
from tests.sampler.conftest import CONTEXT, Oracle, write_model
from tests.sampler.fleet.parts import Launch, draw, until


@pytest.fixture
def launch() -> Launch:
    return ChildLauncher


@pytest.mark.nightly
class TestChildLauncher(LauncherSuite):
    """Children of this process."""


class TestChildren(FleetSuite):
    """Replicas of the machine that the fleet is on."""


@pytest.mark.nightly
async def test_samplers_that_run_by_themselves_are_taken_over_and_waited_for_when_they_come_back(
    model_folder: Path, other_folder: Path, tmp_path: Path, oracle: Oracle
) -> None:
    config = SamplerConfig(slots=2, context_tokens=CONTEXT)
    with launch_sampler(config, other_folder, seed=0, routing=True, log_path=tmp_path / "log") as server:
        health = HealthConfig(grace_s=0, period_s=0.1, deadline_s=0.3)
        given = SamplerConfig(engine="sglang", urls=(server.url,), context_tokens=CONTEXT, health=health)
        serving = Serving(given, model_folder, seed=0, routing=True, logs=tmp_path)
        async with open_fleet(serving, GivenLauncher(serving), [].append) as fleet:
            assert_whole(tokens(6, 20), await draw(fleet, "a", tokens(6, 20)), oracle, 8)
            os.kill(server.pid, signal.SIGKILL)
            await until(fleet, 0, State.STARTING)
            waiting = asyncio.create_task(draw(fleet, "a", tokens(6, 20)))
            await asyncio.to_thread(server.restart, other_folder, 9, 0)
            assert_whole(tokens(6, 20), await waiting, oracle, 8)
        foreign = write_model(tmp_path / "foreign", seed=2, vocab_size=128)
        serving = Serving(given, foreign, seed=0, routing=True, logs=tmp_path)
        with pytest.raises(ServiceError, match="vocabulary has 96 tokens; the checkpoint's has 128"):
            async with open_fleet(serving, GivenLauncher(serving), [].append):
                raise AssertionError("opened")


async def test_a_publication_does_not_wait_for_an_update_that_an_error_of_ours_has_ended(
    model_folder: Path, tmp_path: Path
) -> None:
    class Broken(ChildLauncher):
        async def start(self, place: int, start: int) -> str:
            raise LookupError("ours")

    serving = Serving(SamplerConfig(context_tokens=CONTEXT), model_folder, seed=0, routing=True, logs=tmp_path)
    fleet = Fleet(serving, Broken(serving), [].append)
    with pytest.raises(LookupError, match="ours"):
        await fleet.open()
    fleet._drawing = 1
    with pytest.raises(LookupError, match="ours"):
        await asyncio.wait_for(fleet.hold(), 5)
    await fleet.close()
