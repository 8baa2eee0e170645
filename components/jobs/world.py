"""What every job that runs trials needs: sandboxes, samplers, a tokenizer, and one way to run a trial with them."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from components.config import CampaignConfig
from components.errors import CheckpointError
from components.gateway import ChatTemplate, Policy, SamplerPolicy, Trajectory
from components.harness import run_trial, template_for
from components.joblog import about
from components.jobs.hosts import open_hosts
from components.jobs.job import log
from components.jobs.replicas import RayLauncher
from components.pool import Task
from components.records import Sampling, Trial
from components.rollout import Attempt, Barrier, BehindBarrier, Continuation
from components.sampler import ModelGeometry, SGLangClient
from components.sampler.blocking import in_thread
from components.sampler.fleet import ChildLauncher, Fleet, GivenLauncher, Launcher, Serving, open_fleet
from components.sandbox import SandboxBackend, open_backend
from components.sandbox.host import Hosts, LoggedBackend
from components.tito import BpeTokenizer


@dataclass(frozen=True)
class World:
    """Sandboxes, samplers and tokenizer of one job."""

    config: CampaignConfig
    backend: SandboxBackend
    fleet: Fleet
    tokenizer: BpeTokenizer
    template: ChatTemplate
    hosts: Hosts | None = None
    """The backend, where its boxes outlive this process."""

    async def run(
        self,
        attempt: Attempt[Task],
        sampling: Sampling,
        *,
        capture: bool,
        barrier: Barrier | None = None,
        past: Continuation | None = None,
    ) -> Trial:
        """Runs one trial to its verdict or its fault.

        `capture` records the experts of every position. With a `barrier` every turn is drawn between two of its
        closings, under its version. With a `past` the trial goes on from there, and another process can go on with it.
        """
        config = self.config
        drawing = SamplerPolicy(
            self.fleet,
            stop_token_ids=self.template.stop_token_ids,
            session_id=attempt.trial_id,
            capture=capture,
            version=None if barrier is None else lambda: barrier.version,
        )
        policy: Policy = drawing if barrier is None else BehindBarrier(drawing, barrier, attempt.time)
        backend = self.backend
        if past is not None:
            assert self.hosts is not None, "a trial goes on in a box that outlived its process"
            policy, backend = past.answering(policy), LoggedBackend(self.hosts, past)
        with about(trial=attempt.trial_id), self.fleet.trajectory(attempt.trial_id, attempt.time):
            trial = await run_trial(
                attempt.task,
                trial_id=attempt.trial_id,
                backend=backend,
                trajectory=Trajectory(policy, self.template, sampling=sampling),
                config=config.harness,
                sandbox=config.sandbox,
                agent_timeout_s=config.rollout.agent_timeout_s,
                verifier_timeout_s=config.rollout.verifier_timeout_s,
                progress=attempt.progress,
                time=attempt.time,
                ending=past,
            )
            if trial.fault is not None:
                log.warning("the trial has no verdict, %s", trial.fault)
            return trial


@dataclass(frozen=True, slots=True)
class Drawing:
    """What the samplers of a job are for.

    Attributes:
        seed: of their draws.
        routing: whether experts are captured.
        tell: is given a line each time that a replica ends or serves again.
    """

    seed: int
    routing: bool
    tell: Callable[[str], None]


@asynccontextmanager
async def open_world(
    config: CampaignConfig, checkpoint: Path, state: Path, drawing: Drawing, *, boxes: Path | None = None
) -> AsyncIterator[World]:
    """Sandboxes, and samplers that serve `checkpoint` as version 0.

    Args:
        state: the job's scratch folder.
        boxes: a folder in which the boxes outlive this process (`rollout.reattach_s`), where those of the one before
            it are taken over. None: they end with it.

    Raises:
        CheckpointError: `checkpoint` is no model folder, or its parts are not of one model; nothing was started.
        ServiceError: a sampler does not start, or is not set up for what will be asked of it.
    """
    tokenizer = BpeTokenizer.load(checkpoint)
    require_vocabulary(config, checkpoint, tokenizer)
    template = template_for(tokenizer, config.harness)
    serving = Serving(config.sampler, checkpoint, drawing.seed, drawing.routing, state)
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(_launcher(serving))
        opening = await stack.enter_async_context(_opening_hosts(config, boxes)) if boxes else None
        fleet = await stack.enter_async_context(open_fleet(serving, launcher, drawing.tell))
        hosts = None if opening is None else await opening
        backend = await open_backend(config.sandbox, state) if hosts is None else hosts
        stack.push_async_callback(backend.close)
        yield World(config, backend, fleet, tokenizer, template, hosts)


@asynccontextmanager
async def _opening_hosts(config: CampaignConfig, boxes: Path) -> AsyncIterator[asyncio.Task[Hosts]]:
    """Hosts that start while the samplers do. What has failed tells whoever awaits it, and nobody else."""
    opening = asyncio.create_task(open_hosts(config, boxes))
    try:
        yield opening
    finally:
        opening.cancel()
        (opened,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(opened, Hosts):
            await opened.close()


def require_vocabulary(config: CampaignConfig, checkpoint: Path, tokenizer: BpeTokenizer) -> None:
    """Tokenizer, sampler and trainer must mean the same by an id. The sampler's is the checkpoint's.

    Raises:
        CheckpointError: they do not.
    """
    served, trained, spelled = ModelGeometry.read(checkpoint).vocab_size, config.model.vocab_size, tokenizer.vocab_size
    if served != trained or spelled > served:
        raise CheckpointError(
            f"{checkpoint}: its tokenizer has {spelled} tokens, its model (which the samplers serve) {served}, and the "
            f"trainer's (model.vocab_size) {trained}; the last two must be equal, and the first at most as many"
        )


def client(config: CampaignConfig, checkpoint: Path, sampler_url: str) -> SGLangClient:
    """A client that checks what the sampler returns against the geometry of `checkpoint`."""
    geometry = ModelGeometry.read(checkpoint, config.sampler.context_tokens)
    return SGLangClient(sampler_url, model=geometry, request_timeout_s=config.sampler.request_timeout_s)


@asynccontextmanager
async def _launcher(serving: Serving) -> AsyncIterator[Launcher]:
    """What starts the replicas, as configured. Those that run by themselves are held for the time of the context."""
    if not serving.config.urls:
        yield RayLauncher(serving) if serving.config.placement == "ray" else ChildLauncher(serving)
        return
    with ExitStack() as held:
        for url in sorted(serving.config.urls):  # in one order everywhere, so that no two jobs wait for each other
            await in_thread(partial(held.enter_context, _alone(url)))
        yield GivenLauncher(serving)


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
