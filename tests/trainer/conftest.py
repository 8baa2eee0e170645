"""A model small enough that a step takes milliseconds, streams for it, and ranks that stay for the session."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from components.config import HybridConfig, ModelConfig
from components.records import Sample
from components.trainer.ranks import Ranks
from tests.conformance.trainer_suite import random_sample

MODEL = ModelConfig(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    vocab_size=260,
)

HYBRID = MODEL.model_copy(
    update={
        "architecture": "qwen3_5_moe",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "hybrid": HybridConfig(
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=12,
            shared_expert_intermediate_size=24,
            partial_rotary_factor=0.25,
        ),
    }
)
"""Three gated delta nets, then gated attention."""


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return MODEL


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    generator = np.random.default_rng(7)
    return [random_sample(generator, MODEL, length) for length in (40, 9, 61, 33, 2)]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes. Starting them takes seconds, laying them out again does not."""
    with Ranks(2) as pair:
        yield pair


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four, for what two cannot be laid out as. Only nightly tests may ask for them."""
    with Ranks(4) as four:
        yield four
