"""A publication leaves every sampler on the new weights, or says that it did not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from components.config import ModelConfig, SamplerConfig, TrainerConfig
from components.errors import InfraFault
from components.publish import publish
from components.records import Sampling
from components.sampler import Generation, ModelGeometry, SamplerServer, SGLangClient, launch_sampler
from components.trainer.megatron import MegatronTrainer

MODEL = ModelConfig(
    num_hidden_layers=1, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_experts=4,
    moe_intermediate_size=16, vocab_size=260,
)  # fmt: skip
PROMPT = [5, 9, 200, 3]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints of two differently seeded models."""
    made = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("weights") / "hf"
        MegatronTrainer(MODEL, TrainerConfig(), seed=seed).save_hf(folder)
        made.append(folder)
    return made


@pytest.fixture
def server(folders: list[Path], tmp_path: Path) -> Iterator[SamplerServer]:
    config = SamplerConfig(slots=2, context_tokens=64)
    with launch_sampler(config, folders[0], seed=1, routing=False, log_path=tmp_path / "log") as running:
        yield running


def _client(server: SamplerServer, folder: Path) -> SGLangClient:
    return SGLangClient(server.url, model=ModelGeometry.read(folder, 64))


async def _draw(client: SGLangClient) -> Generation:
    return await client.generate(
        PROMPT, sampling=Sampling(), max_new_tokens=8, stop_token_ids=(), routing_start=None, session_id="s"
    )


async def test_published_weights_are_those_that_answer(server: SamplerServer, folders: list[Path]) -> None:
    client = _client(server, folders[0])
    try:
        before = await _draw(client)
        await publish([client], folders[1], 7)
        after = await _draw(client)
    finally:
        await client.close()
    assert (before.weight_version, after.weight_version) == (0, 7)
    assert after.cached_tokens == 0
    assert not np.array_equal(before.logprobs, after.logprobs)


async def test_a_broken_checkpoint_is_refused_and_the_old_weights_go_on(
    server: SamplerServer, folders: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders[1], broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    client = _client(server, folders[0])
    try:
        with pytest.raises(InfraFault):
            await publish([client], broken, 7)
        assert (await _draw(client)).weight_version == 0
    finally:
        await client.close()


async def test_a_dead_sampler_is_a_fault(server: SamplerServer, folders: list[Path]) -> None:
    client = _client(server, folders[0])
    server.close()
    try:
        with pytest.raises(InfraFault):
            await publish([client], folders[1], 7)
    finally:
        await client.close()
