"""The shape of a Qwen3-MoE checkpoint, read from the `config.json` of its folder.

Invariant: a folder whose maths the engine does not implement is refused by name, never run approximately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import CheckpointError

# Settings that change the forward pass, and the only value of each that the engine computes.
_FIXED = {
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and constants of the forward pass.

    `experts` is E, `topk` is K; `heads` query heads share `kv_heads` key/value heads of `head_dim`.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    topk: int
    expert_hidden: int
    norm_topk: bool
    norm_eps: float
    rope_theta: float
    tied: bool
    max_positions: int
    eos_ids: frozenset[int]

    @staticmethod
    def read(folder: Path) -> Architecture:
        """Reads the architecture of a Hugging Face folder.

        Raises:
            CheckpointError: the folder or its `config.json` is missing, unreadable, or asks for maths that the engine
                does not implement. Lists every such setting.
        """
        document = read_json(folder, "config.json")
        problems = [f"{key} is {document[key]!r}, only {value!r} is supported"
                    for key, value in _FIXED.items() if document.get(key, value) != value]  # fmt: skip
        if document.get("mlp_only_layers"):
            problems.append("mlp_only_layers: dense layers are not supported")
        rope = document.get("rope_parameters") or {}
        scaling = document.get("rope_scaling") or {}
        kind = rope.get("rope_type", scaling.get("rope_type", scaling.get("type", "default")))
        if kind != "default":
            problems.append(f"rope type {kind!r} is not supported")
        if problems:
            raise CheckpointError(f"{folder / 'config.json'}: " + "; ".join(problems))
        try:
            return _parse(document, rope, _eos_ids(folder, document))
        except KeyError as error:
            raise CheckpointError(f"{folder / 'config.json'}: key {error} is missing") from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads one JSON object of a checkpoint folder.

    Raises:
        CheckpointError: names the path and what is wrong with it.
    """
    if not folder.is_dir():
        raise CheckpointError(f"model folder {folder} does not exist")
    path = folder / name
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"model folder {folder} has no {name}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return document


def _parse(document: Mapping[str, Any], rope: Mapping[str, Any], eos_ids: frozenset[int]) -> Architecture:
    heads = document["num_attention_heads"]
    # transformers 5 renamed num_experts to num_local_experts and moved rope_theta into rope_parameters.
    experts = document["num_experts"] if "num_experts" in document else document["num_local_experts"]
    theta = rope["rope_theta"] if "rope_theta" in rope else document["rope_theta"]
    return Architecture(
        vocab=document["vocab_size"],
        hidden=document["hidden_size"],
        layers=document["num_hidden_layers"],
        heads=heads,
        kv_heads=document.get("num_key_value_heads") or heads,
        head_dim=document.get("head_dim") or document["hidden_size"] // heads,
        experts=experts,
        topk=document["num_experts_per_tok"],
        expert_hidden=document["moe_intermediate_size"],
        norm_topk=document.get("norm_topk_prob", False),
        norm_eps=document["rms_norm_eps"],
        rope_theta=theta,
        tied=document.get("tie_word_embeddings", False),
        max_positions=document["max_position_embeddings"],
        eos_ids=eos_ids,
    )


def _eos_ids(folder: Path, document: Mapping[str, Any]) -> frozenset[int]:
    """End-of-sequence ids as SGLang takes them: the generation configuration overrides the model's."""
    source = document
    if (folder / "generation_config.json").is_file():
        generation = read_json(folder, "generation_config.json")
        source = generation if generation.get("eos_token_id") is not None else document
    value = source.get("eos_token_id")
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])
