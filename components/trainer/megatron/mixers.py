"""What stands beside the routed experts in a layer, between Hugging Face's names and Megatron's: attention, gated delta
net, shared expert.

Invariant: both directions only rename, cut and reorder rows, so one undoes the other bit by bit. Fused rows stand by
group, so that a tensor-parallel rank holds consecutive rows:

- `linear_qkv`: for each key-value head its query heads, their gates if the attention is gated, the key, the value head;
- `in_proj`: for each key head of a delta net its query, key, values, their gates, β and α;
- `core.taps`: for each key head its query, key and values;
- `shared_experts.linear_fc1`: gate and up rows in turn.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from components.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]
Tensors = Mapping[str, Tensor]

NORMS = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
}
DELTA = {
    "self_attention.core.A_log": "linear_attn.A_log",
    "self_attention.core.dt_bias": "linear_attn.dt_bias",
    "self_attention.out_norm.weight": "linear_attn.norm.weight",
    "self_attention.out_proj.weight": "linear_attn.out_proj.weight",
}
SHARED = {
    "mlp.shared_experts.linear_fc2.weight": "mlp.shared_expert.down_proj.weight",
    "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate.weight",
}
"""Parameters that differ in name only: Megatron's to Hugging Face's, within a layer."""

INPUTS = ("qkv", "z", "b", "a")
"""The input projections of a delta net: `linear_attn.in_proj_*`."""


def shapes(model: ModelConfig, layer: int) -> Shapes:
    """Hugging Face's keys of one layer's mixer and shared expert, with their shapes."""
    hidden, head = model.hidden_size, model.head_dim
    query, key = model.num_attention_heads * head, model.num_key_value_heads * head
    hybrid = model.hybrid
    found: Shapes = {}
    if hybrid is not None:
        inner = hybrid.shared_expert_intermediate_size
        found = {
            "mlp.shared_expert.gate_proj.weight": (inner, hidden),
            "mlp.shared_expert.up_proj.weight": (inner, hidden),
            "mlp.shared_expert.down_proj.weight": (hidden, inner),
            "mlp.shared_expert_gate.weight": (1, hidden),
        }
    if hybrid is None or layer in model.full_attention_layers:
        return found | {
            "self_attn.q_proj.weight": (query * (1 if hybrid is None else 2), hidden),
            "self_attn.k_proj.weight": (key, hidden),
            "self_attn.v_proj.weight": (key, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "self_attn.q_norm.weight": (head,),
            "self_attn.k_norm.weight": (head,),
        }
    keys, values, heads = _delta_sizes(model)
    return found | {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, hybrid.linear_conv_kernel_dim),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (hybrid.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def to_megatron(weights: Tensors, model: ModelConfig, layer: int, prefix: str) -> dict[str, Tensor]:
    """Megatron's parameters of one layer's mixer and shared expert, named within the layer."""

    def get(name: str) -> Tensor:
        return weights[prefix + name]

    found = {}
    if model.hybrid is not None:
        pair = [get(f"mlp.shared_expert.{part}_proj.weight") for part in ("gate", "up")]
        found = {ours: get(theirs) for ours, theirs in SHARED.items()}
        found["mlp.shared_experts.linear_fc1.weight"] = torch.stack(pair, 1).flatten(0, 1)
    if layer in model.full_attention_layers:
        groups, head = model.num_key_value_heads, model.head_dim
        query, key, value = (get(f"self_attn.{letter}_proj.weight") for letter in "qkv")
        if model.hybrid is not None:
            # Hugging Face keeps each head's gate right behind its query.
            query = query.view(groups, -1, 2, head, model.hidden_size).transpose(1, 2)
        found |= {ours: get(theirs) for ours, theirs in NORMS.items()}
        found["self_attention.linear_qkv.weight"] = _by_group(groups, query.reshape(-1, model.hidden_size), key, value)
        return found
    groups = _groups(model)
    mixed = torch.split(get("linear_attn.in_proj_qkv.weight"), _mixed(model))
    rest = [get(f"linear_attn.in_proj_{letter}.weight") for letter in INPUTS[1:]]
    found |= {ours: get(theirs) for ours, theirs in DELTA.items()}
    found["self_attention.in_proj.weight"] = _by_group(groups, *mixed, *rest)
    taps = torch.split(get("linear_attn.conv1d.weight"), _mixed(model))
    found["self_attention.core.taps"] = _by_group(groups, *taps)
    return found


def to_hugging_face(parameters: Tensors, model: ModelConfig, layer: int, prefix: str) -> dict[str, Tensor]:
    """Hugging Face's weights of one layer's mixer and shared expert, named within the layer."""

    def get(name: str) -> Tensor:
        return parameters[prefix + name]

    found = {}
    if model.hybrid is not None:
        gate, up = get("mlp.shared_experts.linear_fc1.weight").reshape(-1, 2, model.hidden_size).unbind(1)
        found = {theirs: get(ours) for ours, theirs in SHARED.items()}
        found |= {"mlp.shared_expert.gate_proj.weight": gate, "mlp.shared_expert.up_proj.weight": up}
    if layer in model.full_attention_layers:
        groups, head = model.num_key_value_heads, model.head_dim
        rows = [model.num_attention_heads * head * (1 if model.hybrid is None else 2), groups * head, groups * head]
        query, key, value = _ungrouped(get("self_attention.linear_qkv.weight"), groups, rows)
        if model.hybrid is not None:
            query = query.reshape(groups, 2, -1, head, model.hidden_size).transpose(1, 2).reshape(rows[0], -1)
        found |= {theirs: get(ours) for ours, theirs in NORMS.items()}
        return found | {f"self_attn.{n}_proj.weight": x for n, x in zip("qkv", (query, key, value), strict=True)}
    groups, mixed = _groups(model), _mixed(model)
    _, values, heads = _delta_sizes(model)
    parts = _ungrouped(get("self_attention.in_proj.weight"), groups, [*mixed, values, heads, heads])
    inputs = [torch.cat(parts[:3]), *parts[3:]]
    found |= {theirs: get(ours) for ours, theirs in DELTA.items()}
    found |= {f"linear_attn.in_proj_{n}.weight": x for n, x in zip(INPUTS, inputs, strict=True)}
    found["linear_attn.conv1d.weight"] = torch.cat(_ungrouped(get("self_attention.core.taps"), groups, mixed))
    return found


def _by_group(groups: int, *parts: Tensor) -> Tensor:
    """Rows of several matrices, each group's together."""
    return torch.cat([part.reshape(groups, -1, *part.shape[1:]) for part in parts], 1).flatten(0, 1)


def _ungrouped(fused: Tensor, groups: int, rows: list[int]) -> list[Tensor]:
    """The matrices again, of so many rows each."""
    split = torch.split(fused.reshape(groups, -1, *fused.shape[1:]), [count // groups for count in rows], 1)
    return [part.flatten(0, 1) for part in split]


def _groups(model: ModelConfig) -> int:
    assert model.hybrid is not None
    return model.hybrid.linear_num_key_heads


def _delta_sizes(model: ModelConfig) -> tuple[int, int, int]:
    """Rows of keys, rows of values, and value heads of a delta net."""
    hybrid = model.hybrid
    assert hybrid is not None
    keys = hybrid.linear_num_key_heads * hybrid.linear_key_head_dim
    return keys, hybrid.linear_num_value_heads * hybrid.linear_value_head_dim, hybrid.linear_num_value_heads


def _mixed(model: ModelConfig) -> list[int]:
    keys, values, _ = _delta_sizes(model)
    return [keys, keys, values]
