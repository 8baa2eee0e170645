"""Fleets of real servers for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from components.config import HealthConfig, SamplerConfig
from components.records import Sampling
from components.sampler import Generation
from components.sampler.fleet import Fleet, Launcher, Serving, State, open_fleet
from tests.sampler.conftest import CONTEXT

QUICK = HealthConfig(grace_s=0, period_s=0.1, deadline_s=0.5)

Launch = Callable[[Serving], Launcher]


def embedded(folder: Path, logs: Path, **changes: object) -> Serving:
    """Two embedded servers that serve `folder`, unless told otherwise."""
    config = SamplerConfig(**{"replicas": 2, "slots": 4, "context_tokens": CONTEXT, **changes})  # type: ignore[arg-type]
    return Serving(config, folder, seed=0, routing=True, logs=logs)


@asynccontextmanager
async def fleet_of(
    launch: Launch, folder: Path, logs: Path, told: list[str], **changes: object
) -> AsyncIterator[Fleet]:
    """A fleet of `embedded` servers."""
    serving = embedded(folder, logs, **changes)
    async with open_fleet(serving, launch(serving), told.append) as fleet:
        yield fleet


def pid_of(fleet: Fleet, place: int) -> int:
    """The process that listens where the replica serves."""
    host, _, port = fleet.url(place).removeprefix("http://").partition(":")
    listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    pid = next(c.pid for c in listening if c.laddr == (host, int(port)))
    assert pid is not None
    return pid


def kill(fleet: Fleet, place: int) -> None:
    os.kill(pid_of(fleet, place), signal.SIGKILL)


def servers_of(folder: Path) -> set[int]:
    """The embedded servers of this machine that were started with `folder`."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            command = process.info["cmdline"] or []
            if "components.sampler.server" in command and str(folder) in command:
                found.add(process.pid)
    return found


async def draw(fleet: Fleet, session: str, prompt: list[int], new: int = 8, start: int | None = 0) -> Generation:
    return await fleet.generate(
        prompt, sampling=Sampling(), max_new_tokens=new, stop_token_ids=[], routing_start=start, session_id=session
    )


async def until(fleet: Fleet, place: int, *states: State) -> None:
    """Waits until a replica stands so."""
    async with asyncio.timeout(150):
        while fleet.supervision.state(place) not in states:
            await asyncio.sleep(0.02)
