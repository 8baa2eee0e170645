"""Shapes to and from `config.json`, with transformers as the writer that we do not control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeTextConfig

from components.config import HybridConfig, ModelConfig, load
from components.config.hugging_face import document, layer_types, read_shape, shape
from components.errors import ConfigError

HYBRID = ModelConfig(
    architecture="qwen3_5_moe",
    hybrid=HybridConfig(
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        shared_expert_intermediate_size=24,
    ),
    num_hidden_layers=8,
    num_key_value_heads=2,
    rope_theta=1e7,
    tie_word_embeddings=False,
)
PLAIN = ModelConfig(num_key_value_heads=2, head_dim=16, tie_word_embeddings=False)


@pytest.mark.parametrize("model", [PLAIN, HYBRID], ids=["qwen3", "qwen3.5"])
def test_what_is_written_is_read_back(model: ModelConfig) -> None:
    assert shape(document(model), "config.json") == model


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    plain = {key: value for key, value in document(PLAIN).items() if key not in ("architectures", "torch_dtype")}
    Qwen3MoeConfig(**plain).save_pretrained(tmp_path / "plain")
    assert read_shape(tmp_path / "plain") == PLAIN
    hybrid = {key: value for key, value in document(HYBRID).items() if key not in ("architectures", "torch_dtype")}
    Qwen3_5MoeTextConfig(**hybrid).save_pretrained(tmp_path / "text")
    assert read_shape(tmp_path / "text") == HYBRID
    Qwen3_5MoeConfig(text_config=hybrid).save_pretrained(tmp_path / "multimodal")
    assert read_shape(tmp_path / "multimodal" / "config.json") == HYBRID


def test_every_fourth_layer_attends() -> None:
    assert HYBRID.full_attention_layers == (3, 7)
    assert layer_types(HYBRID)[2:5] == ["linear_attention", "full_attention", "linear_attention"]
    assert PLAIN.full_attention_layers == (0, 1)


@pytest.mark.parametrize(
    ("model", "change", "problem"),
    [
        (PLAIN, {"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        (PLAIN, {"norm_topk_prob": False}, "norm_topk_prob"),
        (PLAIN, {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (PLAIN, {"rope_scaling": {"type": "yarn"}}, "rope type 'yarn'"),
        (PLAIN, {"model_type": "llama"}, "model_type is 'llama'"),
        (PLAIN, {"num_experts_per_tok": 99}, "exceeds num_experts"),
        (HYBRID, {"layer_types": ["full_attention", "linear_attention"] * 4}, "layer_types"),
        (HYBRID, {"linear_num_value_heads": 3}, "multiple of linear_num_key_heads"),
    ],
)
def test_maths_that_we_do_not_compute_is_refused_by_name(
    model: ModelConfig, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        shape({**document(model), **change}, "config.json")


def test_every_missing_key_is_listed(tmp_path: Path) -> None:
    found = document(HYBRID)
    for key in ("hidden_size", "num_experts", "linear_conv_kernel_dim", "rope_parameters"):
        del found[key]
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError) as caught:
        read_shape(tmp_path)
    missing = {problem.split("'")[1] for problem in caught.value.problems}
    assert missing == {"hidden_size", "num_experts", "linear_conv_kernel_dim", "rope_theta"}


@pytest.mark.parametrize("text", [None, "{", "[]"], ids=["absent", "cut short", "a list"])
def test_a_file_that_is_no_document_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_shape(tmp_path)


def test_the_embedded_sampler_refuses_an_architecture_that_it_does_not_run() -> None:
    miniature = Path(__file__).parents[2] / "configs" / "miniature.yaml"
    hybrid = json.dumps(HYBRID.model_dump()["hybrid"])
    with pytest.raises(ConfigError, match="embedded does not run qwen3_5_moe"):
        load(miniature, ["model.architecture=qwen3_5_moe", f"model.hybrid={hybrid}"])
    with pytest.raises(ConfigError, match="hybrid is required"):
        load(miniature, ["model.architecture=qwen3_5_moe"])
