"""What every job that runs trials needs: sandboxes, a sampler, a tokenizer, and one way to run a trial with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.config import CampaignConfig
from components.gateway import ChatTemplate, SamplerPolicy, Trajectory
from components.harness import run_trial, template_for
from components.pool import Task
from components.records import Sampling, Trial
from components.rollout import Attempt
from components.sampler import ModelGeometry, Sampler, SGLangClient, launch_sampler
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

    async def run(self, attempt: Attempt[Task], sampling: Sampling, *, capture: bool) -> Trial:
        """Runs one trial to its verdict or its fault. `capture` records the experts of every position."""
        config = self.config
        stops = self.template.stop_token_ids
        policy = SamplerPolicy(self.sampler, stop_token_ids=stops, session_id=attempt.trial_id, capture=capture)
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


@contextmanager
def open_sampler(config: CampaignConfig, checkpoint: Path, *, seed: int, routing: bool, log: Path) -> Iterator[str]:
    """The URL of a sampler that serves `checkpoint`: an embedded one for the time of the context, or a given one.

    Raises:
        CheckpointError: `checkpoint` is no model folder; nothing was started.
    """
    ModelGeometry.read(checkpoint)
    if config.sampler.urls:
        yield config.sampler.urls[0]
        return
    with launch_sampler(config.sampler, checkpoint, seed=seed, routing=routing, log_path=log) as server:
        yield server.url
