"""Samplers as Ray actors, each on whatever machine has the GPUs of a replica.

Invariant: a replica is a child of its actor's process and ends with it, and the actor ends with the job that owns it.
Checkpoint folders must be visible under the same paths on every machine.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from components.config import SamplerConfig
from components.errors import ServiceError
from components.jobs.job import log
from components.sampler.fleet import ChildLauncher, Serving

PATIENCE_S = 30.0
"""After that long without a place, a line says what is waited for."""
ANSWER_S = 10.0
"""What a living actor takes to answer at most; one that hangs is killed unheard."""


class Replica:
    """One sampler on the machine that Ray chose. Made an actor by `RayLauncher`."""

    def __init__(self, config: Mapping[str, Any], checkpoint: str, seed: int, routing: bool) -> None:
        self._logs = Path(tempfile.mkdtemp(prefix="longshell-sampler-"))
        serving = Serving(SamplerConfig(**config), Path(checkpoint), seed, routing, self._logs)
        self._launcher = ChildLauncher(serving, host=ray.util.get_node_ip_address())

    async def here(self) -> str:
        """The machine it was placed on."""
        return str(ray.util.get_node_ip_address())

    async def start(self, place: int, start: int) -> str:
        """See `Launcher.start`."""
        return await self._launcher.start(place, start)

    async def ended(self, place: int) -> str:
        """See `Launcher.ended`."""
        return await self._launcher.ended(place)

    async def last_words(self, place: int) -> str:
        """See `Launcher.last_words`."""
        return await self._launcher.last_words(place)

    async def close(self) -> None:
        """See `Launcher.close`."""
        await self._launcher.close()
        shutil.rmtree(self._logs, ignore_errors=True)


class RayLauncher:
    """A `Launcher` whose replicas are actors. A replica that is started again may come to another machine."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._actors: dict[int, Any] = {}

    async def start(self, place: int, start: int) -> str:
        """See `Launcher.start`. Waits as long as it takes until the GPUs are free."""
        await self.stop(place)
        serving, sglang = self._serving, self._serving.config.sglang
        gpus = 0 if sglang is None else sglang.tp
        config = serving.config.model_dump(mode="json")
        actor = ray.remote(num_cpus=0, num_gpus=gpus, max_restarts=0)(Replica).remote(
            config, str(serving.checkpoint), serving.seed, serving.routing
        )
        self._actors[place] = actor
        try:
            placed = asyncio.ensure_future(_value(actor.here.remote()))
            if not (await asyncio.wait([placed], timeout=PATIENCE_S))[0]:
                log.warning("sampler %d waits for a machine with %d free GPUs", place, gpus)
            await placed
            return str(await _value(actor.start.remote(place, start)))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise ServiceError(f"the actor of sampler {place} ended: {_first_line(error)}") from error

    async def ended(self, place: int) -> str:
        """See `Launcher.ended`."""
        try:
            return str(await _value(self._actors[place].ended.remote(place)))
        except ray.exceptions.RayError as error:
            return f"ended with its actor: {_first_line(error)}"

    async def last_words(self, place: int) -> str:
        """See `Launcher.last_words`."""
        if (actor := self._actors.get(place)) is None:
            return ""
        try:
            async with asyncio.timeout(ANSWER_S):
                return str(await _value(actor.last_words.remote(place)))
        except (ray.exceptions.RayError, TimeoutError):
            return ""

    async def stop(self, place: int) -> None:
        """See `Launcher.stop`."""
        if (actor := self._actors.pop(place, None)) is not None:
            ray.kill(actor)

    async def close(self) -> None:
        """See `Launcher.close`."""
        closing = [asyncio.ensure_future(_value(actor.close.remote())) for actor in self._actors.values()]
        if closing:
            await asyncio.wait(closing, timeout=ANSWER_S)
        for place in list(self._actors):
            await self.stop(place)
        await asyncio.gather(*closing, return_exceptions=True)


async def _value(reference: Any) -> Any:
    return await reference


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
