"""A job whose samplers are Ray actors, which it kills. Its result is what it saw."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import ray

from components.jobs.job import Job, main
from components.jobs.replicas import RayLauncher
from components.records import Sampling
from components.sampler.fleet import Fleet, Serving, State, open_fleet


def stage(job: Job) -> dict[str, Any]:
    ray.init(address="auto", logging_level="warning")
    return asyncio.run(_seen(job))


async def _seen(job: Job) -> dict[str, Any]:
    told: list[str] = []
    serving = Serving(job.config.sampler, Path(job.inputs["folder"]), seed=0, routing=True, logs=job.folder)
    async with open_fleet(serving, RayLauncher(serving), told.append) as fleet:
        servers = [_listening(fleet.url(place)) for place in (0, 1)]
        actors = [psutil.Process(pid).ppid() for pid in servers]
        seen: dict[str, Any] = {"owners": [*actors, os.getpid()], "first": [await _draw(fleet, name) for name in "ab"]}
        os.kill(servers[0], signal.SIGKILL)
        await _until(fleet, 0, State.DOWN, State.STARTING)
        seen["meanwhile"] = await _draw(fleet, "a")
        await _until(fleet, 0, State.SERVING)
        os.kill(actors[1], signal.SIGKILL)
        await _until(fleet, 1, State.DOWN, State.STARTING)
        await _until(fleet, 1, State.SERVING)
        seen["again"] = [await _draw(fleet, name) for name in "cd"]
        servers += [_listening(fleet.url(place)) for place in (0, 1)]
        seen["places"] = list(fleet.supervision.load())
    return seen | {"told": told, "servers": servers}


def _listening(url: str) -> int:
    """The process that listens at a URL."""
    port = int(url.rpartition(":")[2])
    return next(c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == "LISTEN")


async def _until(fleet: Fleet, place: int, *states: State) -> None:
    async with asyncio.timeout(90):
        while fleet.supervision.state(place) not in states:
            await asyncio.sleep(0.05)


async def _draw(fleet: Fleet, session: str) -> int:
    answer = await fleet.generate(
        [5, 6, 7], sampling=Sampling(), max_new_tokens=4, stop_token_ids=[], session_id=session
    )
    return len(answer.output_ids)


if __name__ == "__main__":
    main(stage)
