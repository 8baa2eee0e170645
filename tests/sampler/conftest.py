"""Tiny random models, transformers as the oracle, and one embedded server for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from components.config import SamplerConfig
from components.sampler import SamplerServer, launch_sampler

CONTEXT = 1024
SLOTS = 8
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}


def write_model(folder: Path, seed: int, **changes: Any) -> Path:
    """A random checkpoint, as transformers writes it."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**SHAPE, **changes}))
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones would hide a norm that is applied twice or not at all
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Forced:
    """Teacher-forced logits [N, V] and experts [N, L, K] in descending order."""

    logits: torch.Tensor
    experts: NDArray[np.int64]

    def logprobs(self, ids: list[int], start: int, temperature: float = 1.0) -> NDArray[np.float64]:
        """Log-probs of ids[start:]."""
        table = (self.logits.double() / temperature).log_softmax(-1)
        return np.array([table[j - 1, ids[j]].item() for j in range(start, len(ids))])


class Oracle:
    """transformers, float32, whole sequence at once."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3MoeForCausalLM

        self.model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def __call__(self, ids: list[int]) -> Forced:
        out = self.model(torch.tensor([ids]), output_router_logits=True)
        # Version dependent: the router's logits, or its probabilities. Order of experts is the same in both.
        router = torch.stack([layer.reshape(len(ids), -1) for layer in out.router_logits], 1)
        experts = router.topk(self.model.config.num_experts_per_tok, -1).indices.numpy()
        return Forced(out.logits[0], experts)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape, other weights."""
    return write_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def oracle(model_folder: Path) -> Oracle:
    return Oracle(model_folder)


@pytest.fixture(scope="session")
def other_oracle(other_folder: Path) -> Oracle:
    return Oracle(other_folder)


@pytest.fixture(scope="session")
def embedded(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerServer]:
    config = SamplerConfig(slots=SLOTS, context_tokens=CONTEXT, prefill_tokens=64)
    log = tmp_path_factory.mktemp("log") / "sampler.log"
    with launch_sampler(config, model_folder, seed=0, routing=True, log_path=log) as server:
        yield server
