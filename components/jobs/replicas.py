"""Samplers as Ray actors, each on whatever machine has the GPUs of a replica.

Invariant: a replica is a child of its actor's process and ends with it, and the actor ends with the job that owns it; a
replica has ended before its GPUs are given to the next one. Checkpoint folders must be visible under the same paths on
every machine.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import ray

from components.errors import ServiceError
from components.jobs.actors import replica
from components.jobs.job import log
from components.sampler.fleet import ChildLauncher, Serving

PATIENCE_S = 30.0
"""After that long without a place, a line says what is waited for."""
ANSWER_S = 15.0
"""What a living actor takes to answer at most, an SGLang's end included; one that hangs is killed unheard."""


_ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""An actor's end is left to the lifeline of what it started: Ray would kill the guardian of an SGLang (`guardian`), and
leave those whom that guards."""


class Replica:
    """One sampler on the machine that Ray chose. Made an actor by `RayLauncher`."""

    def __init__(self, serving: Serving, place: int) -> None:
        self._place = place
        self._log = serving.log_of(place)
        self._launcher = ChildLauncher(serving, host=ray.util.get_node_ip_address())

    async def here(self) -> str:
        """The machine it was placed on."""
        return str(ray.util.get_node_ip_address())

    async def start(self, start: int) -> str:
        """See `Launcher.start`."""
        return await self._launcher.start(self._place, start)

    async def ended(self) -> str:
        """See `Launcher.ended`."""
        return await self._launcher.ended(self._place)

    async def last_words(self) -> str:
        """See `Launcher.last_words`."""
        return await self._launcher.last_words(self._place)

    async def stop(self) -> None:
        """See `Launcher.stop`."""
        await self._launcher.stop(self._place)

    async def close(self) -> None:
        """See `Launcher.close`. The log goes too: nobody would remove it from a machine that is not the job's."""
        await self._launcher.close()
        self._log.unlink(missing_ok=True)


class RayLauncher:
    """A `Launcher` whose replicas are actors. A replica that is started again may come to another machine."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._actors: dict[int, Any] = {}

    async def start(self, place: int, start: int) -> str:
        """See `Launcher.start`. Waits as long as it takes until the GPUs are free."""
        await self.stop(place)
        wanted = replica(self._serving.config)
        actor = ray.remote(**wanted, runtime_env={"env_vars": _ENVIRONMENT})(Replica).remote(self._serving, place)
        self._actors[place] = actor
        try:
            placed = asyncio.ensure_future(_value(actor.here.remote()))
            if not (await asyncio.wait([placed], timeout=PATIENCE_S))[0]:
                log.warning("sampler %d waits for a machine with %d free GPUs", place, wanted["num_gpus"])
            await placed
            return str(await _value(actor.start.remote(start)))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise ServiceError(f"the actor of sampler {place} ended: {_first_line(error)}") from error

    async def ended(self, place: int) -> str:
        """See `Launcher.ended`."""
        try:
            return str(await _value(self._actors[place].ended.remote()))
        except ray.exceptions.RayError as error:
            return f"ended with its actor: {_first_line(error)}"

    async def last_words(self, place: int) -> str:
        """See `Launcher.last_words`."""
        actor = self._actors.get(place)
        return "" if actor is None else await _answer(actor.last_words.remote()) or ""

    async def stop(self, place: int) -> None:
        """See `Launcher.stop`."""
        if (actor := self._actors.pop(place, None)) is not None:
            await _answer(actor.stop.remote())
            ray.kill(actor)

    async def close(self) -> None:
        """See `Launcher.close`."""
        actors = list(self._actors.values())
        self._actors.clear()
        await asyncio.gather(*(_answer(actor.close.remote()) for actor in actors))
        for actor in actors:
            ray.kill(actor)


async def _value(reference: Any) -> Any:
    return await reference


async def _answer(reference: Any) -> Any:
    """What an actor answers; None from one that has ended, or hangs."""
    with suppress(ray.exceptions.RayError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return await reference
    return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
