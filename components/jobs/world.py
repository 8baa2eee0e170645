"""What every job that runs trials needs: sandboxes, a sampler, a tokenizer, and one way to run a trial with them."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.config import CampaignConfig
from components.gateway import ChatTemplate, Policy, SamplerPolicy, Trajectory
from components.harness import run_trial, template_for
from components.jobs.job import log
from components.pool import Task
from components.records import Sampling, Trial
from components.rollout import Attempt, Barrier, BehindBarrier
from components.sampler import ModelGeometry, Sampler, SamplerServer, SGLangClient, launch_sampler
from components.sandbox import SandboxBackend, open_backend
from components.tito import BpeTokenizer


@dataclass(frozen=True)
class World:
    """Sandboxes, sampler and tokenizer of one job."""

    config: CampaignConfig
    backend: SandboxBackend
    sampler: Sampler
    tokenizer: BpeTokenizer
    template: ChatTemplate

    async def run(
        self, attempt: Attempt[Task], sampling: Sampling, *, capture: bool, barrier: Barrier | None = None
    ) -> Trial:
        """Runs one trial to its verdict or its fault.

        `capture` records the experts of every position. With a `barrier` every turn is drawn between two of its
        closings, under its version.
        """
        config = self.config
        drawing = SamplerPolicy(
            self.sampler,
            stop_token_ids=self.template.stop_token_ids,
            session_id=attempt.trial_id,
            capture=capture,
            version=None if barrier is None else lambda: barrier.version,
        )
        policy: Policy = drawing if barrier is None else BehindBarrier(drawing, barrier, attempt.time)
        return await run_trial(
            attempt.task,
            trial_id=attempt.trial_id,
            backend=self.backend,
            trajectory=Trajectory(policy, self.template, sampling=sampling),
            config=config.harness,
            sandbox=config.sandbox,
            agent_timeout_s=config.rollout.agent_timeout_s,
            verifier_timeout_s=config.rollout.verifier_timeout_s,
            progress=attempt.progress,
            time=attempt.time,
        )


@asynccontextmanager
async def open_world(config: CampaignConfig, checkpoint: Path, sampler_url: str, state: Path) -> AsyncIterator[World]:
    """Sandboxes, and a connection to the sampler at `sampler_url`, which serves `checkpoint`."""
    tokenizer = BpeTokenizer.load(checkpoint)
    template = template_for(tokenizer, config.harness)
    sampler = client(config, checkpoint, sampler_url)
    try:
        backend = await open_backend(config.sandbox, state)
        try:
            yield World(config, backend, sampler, tokenizer, template)
        finally:
            await backend.close()
    finally:
        await sampler.close()


def client(config: CampaignConfig, checkpoint: Path, sampler_url: str) -> SGLangClient:
    """A client that checks what the sampler returns against the geometry of `checkpoint`."""
    geometry = ModelGeometry.read(checkpoint, config.sampler.context_tokens)
    return SGLangClient(sampler_url, model=geometry, request_timeout_s=config.sampler.request_timeout_s)


@dataclass(frozen=True, slots=True)
class OpenSampler:
    """A sampler that serves; `server` is None when it runs by itself and cannot be started anew from here."""

    url: str
    server: SamplerServer | None


@contextmanager
def open_sampler(
    config: CampaignConfig, checkpoint: Path, *, seed: int, routing: bool, log: Path
) -> Iterator[OpenSampler]:
    """A sampler that serves `checkpoint` as version 0: one that is started for the time of the context, or a given one.

    Raises:
        CheckpointError: `checkpoint` is no model folder; nothing was started.
        ServiceError: the sampler does not start, or is not set up for what will be asked of it.
        InfraFault: a given sampler does not answer or cannot load the checkpoint.
    """
    ModelGeometry.read(checkpoint)
    for url in config.sampler.urls:  # one at most
        with _alone(url):
            asyncio.run(_take_over(client(config, checkpoint, url), checkpoint, routing))
            yield OpenSampler(url, None)
            return
    with launch_sampler(config.sampler, checkpoint, seed=seed, routing=routing, log_path=log) as server:
        yield OpenSampler(server.url, server)


@contextmanager
def _alone(url: str) -> Iterator[None]:
    """Holds a sampler that runs by itself for one job of this machine at a time: each serves other weights."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"longshell-{os.getuid()}-sampler-{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for the sampler at %s, which another job uses", url)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def _take_over(sampler: SGLangClient, checkpoint: Path, routing: bool) -> None:
    """Makes a sampler that ran before serve the checkpoint, whatever it served and whoever left it paused."""
    try:
        await sampler.probe(routing=routing)
        await sampler.pause()
        await sampler.flush_cache()
        await sampler.update_weights(str(checkpoint), 0)
        await sampler.resume()
    finally:
        await sampler.close()
