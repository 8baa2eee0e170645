"""Counts of parameters and bytes, against transformers' own models and the figures that are published."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from components.config import ModelConfig
from components.config.hugging_face import document
from components.planner import ModelShape
from components.planner.shape import INT32
from tests.planner.conftest import QWEN3_30B, QWEN35_122B

BILLION = 1e9


def transformers_parameters(model: ModelConfig, kind: Any) -> int:
    """Of a model without memory."""
    settings = {key: value for key, value in document(model).items() if key not in ("architectures", "torch_dtype")}
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(kind(**settings)).parameters())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("model", "kind"),
    [(QWEN3_30B, Qwen3MoeConfig), (QWEN35_122B, Qwen3_5MoeTextConfig)],
    ids=["qwen3-30b", "qwen3.5-122b"],
)
def test_every_parameter_that_transformers_has_is_counted(model: ModelConfig, kind: Any, tied: bool) -> None:
    model = model.model_copy(update={"num_hidden_layers": 8, "tie_word_embeddings": tied})
    assert ModelShape.of(model).parameters == transformers_parameters(model, kind)


def test_the_experts_of_the_papers_model_are_116_billion_and_the_rest_lies_around_5_86() -> None:
    shape = ModelShape.of(QWEN35_122B)
    assert shape.expert_parameters == 48 * 256 * 3 * 3_072 * 1_024
    assert round(shape.expert_parameters / BILLION, 1) == 116.0
    embedding = 248_320 * 3_072
    one, two = shape.dense_parameters - embedding, shape.dense_parameters
    assert round(one / BILLION, 2) == 5.38
    assert round(two / BILLION, 2) == 6.15
    assert one < 5.86 * BILLION < two  # the paper's figure, which neither count gives
    assert round((shape.parameters - embedding) / BILLION, 2) == 121.35
    assert round(shape.parameters / BILLION, 1) == 122.1
    assert round(shape.active_parameters / BILLION, 2) == 9.77


def test_a_routing_record_is_384_bytes_a_token_and_1536_as_int32() -> None:
    shape = ModelShape.of(QWEN35_122B)
    assert shape.routing_bytes_per_token() == 384
    assert shape.routing_bytes_per_token(INT32) == 1_536
    assert shape.routing_bytes_per_token(INT32) * 32_768 == 48 << 20
    wide = ModelShape.of(QWEN35_122B.model_copy(update={"num_experts": 257}))
    assert wide.routing_bytes_per_token() == 768


def test_only_layers_that_attend_have_a_cache_and_only_delta_nets_a_state() -> None:
    hybrid, plain = ModelShape.of(QWEN35_122B), ModelShape.of(QWEN3_30B)
    assert (hybrid.layers, hybrid.full_attention_layers) == (48, 12)
    assert hybrid.kv_bytes_per_token == 24_576
    assert hybrid.state_bytes_per_sequence == 36 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)
    assert (plain.full_attention_layers, plain.state_bytes_per_sequence) == (48, 0)
    assert plain.kv_bytes_per_token == 48 * 2 * 4 * 128 * 2
