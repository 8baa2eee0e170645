"""How replicas are started, watched and ended. The fleet knows no more of it than this protocol.

Invariant: when `close` has returned, or this process has ended in whatever way, nothing runs that was started here.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.config import SamplerConfig
from components.errors import CheckpointError, InfraFault, ServiceError
from components.sampler.blocking import in_thread
from components.sampler.client import SGLangClient
from components.sampler.geometry import ModelGeometry
from components.sampler.launch import LOCAL, SamplerServer, launch_sampler, tail_of

LOOK_S = 0.1
"""How often a process is looked at, whether it has ended."""
_SEEDS = 1_000_000


class Launcher(Protocol):
    """Starts the replicas of one fleet. Within one event loop; calls for different places overlap."""

    async def start(self, place: int, start: int) -> str:
        """Starts a replica that serves the checkpoint as version 0, and returns its URL when it answers.

        Args:
            start: number of the start, from 1. What is left of the one before is ended first.

        Raises:
            ServiceError: it does not become ready; the message has the end of its log.
        """
        ...

    async def ended(self, place: int) -> str:
        """Returns when the replica has ended by itself, and how. Waits for ever where that cannot be seen from here."""
        ...

    async def last_words(self, place: int) -> str:
        """The end of the replica's log; empty where it cannot be seen from here."""
        ...

    async def stop(self, place: int) -> None:
        """Ends a replica, however it does."""
        ...

    async def close(self) -> None:
        """Ends all of them, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """What the replicas of a fleet have in common.

    Attributes:
        checkpoint: the folder that they serve as version 0.
        seed: of the first start of the first replica. No two starts draw alike: else members of a group would.
        routing: capture the experts of every token.
        logs: folder of their logs.
    """

    config: SamplerConfig
    checkpoint: Path
    seed: int
    routing: bool
    logs: Path

    def seed_of(self, place: int, start: int) -> int:
        """The seed of one life of a replica."""
        return self.seed + _SEEDS * (place + self.config.members * (start - 1))

    def log_of(self, place: int) -> Path:
        """The log of a replica, over all its lives."""
        return self.logs / f"sampler-{place}.log"


class ChildLauncher:
    """Replicas as child processes."""

    def __init__(self, serving: Serving, host: str = LOCAL) -> None:
        self._serving = serving
        self._host = host
        self._closed = threading.Event()
        self._starting: set[int] = set()
        self._servers: dict[int, SamplerServer] = {}

    async def start(self, place: int, start: int) -> str:
        """See `Launcher.start`. A replica keeps its URL."""
        self._starting.add(place)
        return (await in_thread(lambda: self._start(place, start))).url

    def _start(self, place: int, start: int) -> SamplerServer:
        try:
            return self._started(place, start)
        finally:
            self._starting.discard(place)

    def _started(self, place: int, start: int) -> SamplerServer:
        serving, seed = self._serving, self._serving.seed_of(place, start)
        server = self._servers.get(place)
        if server is not None:
            server.restart(serving.checkpoint, 0, seed)
        else:
            server = launch_sampler(
                serving.config,
                serving.checkpoint,
                seed=seed,
                routing=serving.routing,
                log_path=serving.log_of(place),
                host=self._host,
                unwanted=self._closed,
            )
            self._servers[place] = server
        return server

    async def ended(self, place: int) -> str:
        """See `Launcher.ended`."""
        server = self._servers[place]
        while (code := server.exit_code) is None:
            await asyncio.sleep(LOOK_S)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{server.url} ended with {how}"

    async def last_words(self, place: int) -> str:
        """See `Launcher.last_words`."""
        log = self._serving.log_of(place)
        return tail_of(log) if log.exists() else ""

    async def stop(self, place: int) -> None:
        """See `Launcher.stop`."""
        if (server := self._servers.get(place)) is not None:
            await asyncio.to_thread(server.kill)

    async def close(self) -> None:
        """See `Launcher.close`."""
        self._closed.set()
        while self._starting:  # whose start nobody need wait for any more: each ends what it has started
            await asyncio.sleep(LOOK_S)
        await asyncio.gather(*(asyncio.to_thread(server.close) for server in self._servers.values()))


class GivenLauncher:
    """Replicas that run by themselves. To start one is to make it serve the checkpoint, whatever it served before and
    whoever left it paused; one that has ended is waited for, since somebody may start it again."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def start(self, place: int, start: int) -> str:
        """See `Launcher.start`."""
        serving, url = self._serving, self._serving.config.urls[place]
        geometry = ModelGeometry.read(serving.checkpoint, serving.config.context_tokens)
        client = SGLangClient(url, model=geometry, request_timeout_s=serving.config.request_timeout_s)
        try:
            if start > 1:
                await self._until_healthy(client)
            await client.probe(routing=serving.routing)
            await _require_vocabulary(client, geometry)
            await client.pause()
            await client.flush_cache()
            await client.update_weights(str(serving.checkpoint), 0)
            await client.resume()
        except InfraFault as fault:
            raise ServiceError(f"the sampler at {url}, which runs by itself, cannot be taken over: {fault}") from fault
        finally:
            await client.close()
        return url

    async def _until_healthy(self, client: SGLangClient) -> None:
        limit_s = self._serving.config.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while not await client.healthy():
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise ServiceError(
                f"the sampler at {client.url} has not answered for {limit_s:g} s; it was not started from here: start "
                "it again, then resume the campaign"
            ) from None

    async def ended(self, place: int) -> str:
        """See `Launcher.ended`: its process cannot be seen."""
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def last_words(self, place: int) -> str:
        """See `Launcher.last_words`: its log cannot be seen."""
        return ""

    async def stop(self, place: int) -> None:
        """See `Launcher.stop`: it cannot be ended from here, and is not drawn from."""

    async def close(self) -> None:
        """See `Launcher.close`: they go on."""


async def _require_vocabulary(client: SGLangClient, geometry: ModelGeometry) -> None:
    """What a sampler serves before it is given our weights must have our vocabulary: its ids are not checked there."""
    folder = Path((await client.info()).model_path)
    try:
        served = ModelGeometry.read(folder).vocab_size
    except CheckpointError as error:
        raise ServiceError(f"the sampler at {client.url} does not see folders under our paths: {error}") from error
    if served != geometry.vocab_size:
        raise ServiceError(
            f"the sampler at {client.url} serves {folder}, whose vocabulary has {served} tokens; the checkpoint's has "
            f"{geometry.vocab_size}"
        )
