"""A model's shape to and from the `config.json` of a Hugging Face folder.

Invariant: a document whose maths we do not implement is refused by name, never read approximately; what `document`
writes, `shape` reads back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from components.config.model import HybridConfig, ModelConfig
from components.errors import ConfigError

ARCHITECTURES = {"qwen3_moe": "qwen3_moe", "qwen3_5_moe": "qwen3_5_moe", "qwen3_5_moe_text": "qwen3_5_moe"}
"""`model_type` of a document to ours. The plain name of Qwen3.5 wraps the text model as `text_config`."""

FIXED: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0}
"""Settings that change the forward pass, the only value of each that we compute, which is also their default."""
FIXED_QWEN3: dict[str, Any] = {"use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []}

FULL, LINEAR = "full_attention", "linear_attention"
"""Names of the two kinds of layers in `layer_types`."""

REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
)
HYBRID = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "shared_expert_intermediate_size",
)


def read_shape(place: Path) -> ModelConfig:
    """The shape of the model in a folder, or in a `config.json` itself.

    Raises:
        ConfigError: the file is missing, is not JSON, or is no document that `shape` takes.
    """
    file = place / "config.json" if place.is_dir() else place
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror or error}"], str(file)) from error
    except ValueError as error:
        raise ConfigError([f"is not JSON: {error}"], str(file)) from error
    if not isinstance(found, dict):
        raise ConfigError(["is not a JSON object"], str(file))
    return shape(found, str(file))


def shape(document: Mapping[str, Any], source: str) -> ModelConfig:
    """The shape that a `config.json` describes, the text part of a multimodal one; `source` names it in the error.

    Raises:
        ConfigError: lists every key that is missing, and every setting whose maths we do not implement.
    """
    text = {**document, **document.get("text_config", {})}
    kind = text.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError([f"model_type is {kind!r}, known are {', '.join(ARCHITECTURES)}"], source)
    hybrid = ARCHITECTURES[kind] == "qwen3_5_moe"
    # transformers 5 renamed num_experts to num_local_experts and moved rope_theta into rope_parameters.
    rope = text.get("rope_parameters") or {}
    experts = text.get("num_experts", text.get("num_local_experts"))
    theta = rope.get("rope_theta", text.get("rope_theta"))
    problems = [f"key {key!r} is missing" for key in (*REQUIRED, *(HYBRID if hybrid else ())) if key not in text]
    problems += [f"key {key!r} is missing" for key, v in (("num_experts", experts), ("rope_theta", theta)) if v is None]
    problems += _unsupported(text, rope, hybrid)
    if problems:
        raise ConfigError(problems, source)
    try:
        return ModelConfig(
            architecture="qwen3_5_moe" if hybrid else "qwen3_moe",
            hybrid=_hybrid(text, rope) if hybrid else None,
            **{key: text[key] for key in REQUIRED},
            num_key_value_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
            head_dim=text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"],
            num_experts=experts,
            rope_theta=theta,
            tie_word_embeddings=text.get("tie_word_embeddings", False),
            init_std=text.get("initializer_range", 0.02),
        )
    except ValidationError as error:
        listed = [f"{'.'.join(map(str, item['loc'])) or 'shape'}: {item['msg']}" for item in error.errors()]
        raise ConfigError(listed, source) from error


def document(model: ModelConfig) -> dict[str, Any]:
    """The `config.json` of `model`, as a text model by itself."""
    shared = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "moe_intermediate_size": model.moe_intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": model.rms_norm_eps,
        "tie_word_embeddings": model.tie_word_embeddings,
        "initializer_range": model.init_std,
        "torch_dtype": "float32",
        **FIXED,
    }
    if model.hybrid is None:
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            **shared,
            "intermediate_size": model.moe_intermediate_size,
            "rope_theta": model.rope_theta,
            "norm_topk_prob": True,
            **FIXED_QWEN3,
        }
    hybrid = model.hybrid.model_dump()
    factor = hybrid.pop("partial_rotary_factor")
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        **shared,
        **hybrid,
        "layer_types": layer_types(model),
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta, "partial_rotary_factor": factor},
    }


def layer_types(model: ModelConfig) -> list[str]:
    """The kind of each layer, in Hugging Face's words."""
    full = set(model.full_attention_layers)
    return [FULL if layer in full else LINEAR for layer in range(model.num_hidden_layers)]


def _unsupported(text: Mapping[str, Any], rope: Mapping[str, Any], hybrid: bool) -> list[str]:
    fixed = FIXED if hybrid else {**FIXED, **FIXED_QWEN3}
    problems = [
        f"{key} is {text[key]!r}, only {value!r} is supported"
        for key, value in fixed.items()
        if key in text and (text[key] or value) != value
    ]
    if not hybrid and not text.get("norm_topk_prob", False):
        problems.append("norm_topk_prob is false, only true is supported")
    scaling = text.get("rope_scaling") or {}
    kind = rope.get("rope_type", scaling.get("rope_type", scaling.get("type", "default")))
    if kind != "default":
        problems.append(f"rope type {kind!r} is not supported")
    if hybrid and "num_hidden_layers" in text and not _interval(text):
        problems.append("layer_types is not linear attention with a full layer every so many")
    return problems


def _interval(text: Mapping[str, Any]) -> int:
    """How often a layer attends in full; 0 when `layer_types` has no such period."""
    layers, kinds = int(text["num_hidden_layers"]), text.get("layer_types")
    if kinds is None:
        return int(text.get("full_attention_interval", 4))
    interval = kinds.index(FULL) + 1 if FULL in kinds else layers + 1
    period = [LINEAR if (layer + 1) % interval else FULL for layer in range(layers)]
    return interval if kinds == period else 0


def _hybrid(text: Mapping[str, Any], rope: Mapping[str, Any]) -> HybridConfig:
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
    return HybridConfig(
        full_attention_interval=_interval(text), partial_rotary_factor=factor, **{key: text[key] for key in HYBRID}
    )
