"""Fleets of real servers for tests."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from components.config import HealthConfig, SamplerConfig
from components.records import Sampling
from components.sampler import Generation
from components.sampler.fleet import ChildLauncher, Fleet, Serving, State, open_fleet
from tests.sampler.conftest import CONTEXT

QUICK = HealthConfig(grace_s=0, period_s=0.1, deadline_s=0.5)


@asynccontextmanager
async def fleet_of(
    folder: Path, logs: Path, told: list[str], *, slots: int = 4, **changes: object
) -> AsyncIterator[tuple[Fleet, ChildLauncher]]:
    """Embedded servers that serve `folder`; two unless told otherwise."""
    config = SamplerConfig(**{"replicas": 2, "slots": slots, "context_tokens": CONTEXT, **changes})  # type: ignore[arg-type]
    serving = Serving(config, folder, seed=0, routing=True, logs=logs)
    launcher = ChildLauncher(serving)
    async with open_fleet(serving, launcher, told.append) as fleet:
        yield fleet, launcher


def pid_of(launcher: ChildLauncher, place: int) -> int:
    return launcher._servers[place].pid


def kill(launcher: ChildLauncher, place: int) -> None:
    os.kill(pid_of(launcher, place), signal.SIGKILL)


async def draw(fleet: Fleet, session: str, prompt: list[int], new: int = 8, start: int | None = 0) -> Generation:
    return await fleet.generate(
        prompt, sampling=Sampling(), max_new_tokens=new, stop_token_ids=[], routing_start=start, session_id=session
    )


async def until(fleet: Fleet, place: int, *states: State) -> None:
    """Waits until a replica stands so."""
    async with asyncio.timeout(150):
        while fleet.supervision.state(place) not in states:
            await asyncio.sleep(0.02)
