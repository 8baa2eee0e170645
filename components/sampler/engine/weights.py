"""Weights of the engine, read from safetensors and laid out for few, large matrix products.

Invariant: the layout computes the model's function exactly, up to the order of float additions.
- q, k and v projections are one matrix; matrices are stored input-major, so that a product reads them contiguously.
- Within a head, rotary pairs (i, i + head_dim/2) are made adjacent in q and k alike: scores do not change, and the
  rotation becomes one complex product. The scale 1/sqrt(head_dim) is folded into the q norm.
- All experts of a layer are one matrix [hidden, E * 2 * expert_hidden] (gate, then up, expert by expert), of which an
  expert's columns are a slice, and one matrix [E * expert_hidden, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from components.errors import CheckpointError
from components.sampler.engine.architecture import Architecture, read_json


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer."""

    attention_norm: Tensor
    qkv: Tensor
    head_norm: Tensor
    output: Tensor
    expert_norm: Tensor
    router: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A whole model; `head` is [hidden, vocab]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def load_weights(folder: Path, arch: Architecture, dtype: torch.dtype, router_dtype: torch.dtype) -> Weights:
    """Reads every tensor of a Hugging Face folder; see `build_weights`."""
    return build_weights(_read_tensors(folder), arch, dtype, router_dtype, source=f"model folder {folder}")


def build_weights(
    tensors: Mapping[str, Tensor], arch: Architecture, dtype: torch.dtype, router_dtype: torch.dtype, *, source: str
) -> Weights:
    """Lays out the tensors of a model, named as Hugging Face names them.

    Raises:
        CheckpointError: a tensor is missing, of another shape, or not finite. Nothing is laid out in part.
    """

    def take(name: str, *shape: int) -> Tensor:
        if name not in tensors:
            raise CheckpointError(f"{source} has no tensor {name}")
        tensor = tensors[name].float()
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{source}: {name} is {list(tensor.shape)}, config.json implies {list(shape)}")
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{source}: {name} holds values that are not finite")
        return tensor

    embedding = take("model.embed_tokens.weight", arch.vocab, arch.hidden)
    head = embedding if arch.tied else take("lm_head.weight", arch.vocab, arch.hidden)
    return Weights(
        embedding=embedding.to(dtype),
        layers=tuple(_layer(take, f"model.layers.{i}", arch, dtype, router_dtype) for i in range(arch.layers)),
        norm=take("model.norm.weight", arch.hidden).to(dtype),
        head=_input_major(head, dtype),
    )


def _layer(
    take: Callable[..., Tensor], prefix: str, arch: Architecture, dtype: torch.dtype, router_dtype: torch.dtype
) -> LayerWeights:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_rows, kv_rows, ff = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim, arch.expert_hidden
    q = _adjacent_pairs(take(f"{attention}.q_proj.weight", q_rows, arch.hidden), arch.head_dim)
    k = _adjacent_pairs(take(f"{attention}.k_proj.weight", kv_rows, arch.hidden), arch.head_dim)
    v = take(f"{attention}.v_proj.weight", kv_rows, arch.hidden)
    q_norm = _adjacent_pairs(take(f"{attention}.q_norm.weight", arch.head_dim), arch.head_dim) * arch.head_dim**-0.5
    k_norm = _adjacent_pairs(take(f"{attention}.k_norm.weight", arch.head_dim), arch.head_dim)
    experts = [f"{mlp}.experts.{e}" for e in range(arch.experts)]
    gate_up = [take(f"{e}.{name}_proj.weight", ff, arch.hidden) for e in experts for name in ("gate", "up")]
    down = [take(f"{e}.down_proj.weight", arch.hidden, ff).t() for e in experts]
    return LayerWeights(
        attention_norm=take(f"{prefix}.input_layernorm.weight", arch.hidden).to(dtype),
        qkv=_input_major(torch.cat([q, k, v]), dtype),
        # Kept in float32: q and k are normalised and rotated in float32 whatever the dtype of the products.
        head_norm=torch.cat([q_norm.expand(arch.heads, -1), k_norm.expand(arch.kv_heads, -1)]).contiguous(),
        output=_input_major(take(f"{attention}.o_proj.weight", arch.hidden, q_rows), dtype),
        expert_norm=take(f"{prefix}.post_attention_layernorm.weight", arch.hidden).to(dtype),
        router=_input_major(take(f"{mlp}.gate.weight", arch.experts, arch.hidden), router_dtype),
        gate_up=_input_major(torch.cat(gate_up), dtype),
        down=torch.cat(down).to(dtype).contiguous(),
    )


def _input_major(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.t().to(dtype).contiguous()


def _adjacent_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Reorders the rows of every head from (0..h/2, h/2..h) to (0, h/2, 1, h/2 + 1, ...)."""
    heads = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if not folder.is_dir():
        raise CheckpointError(f"model folder {folder} does not exist")
    names = ["model.safetensors"]
    if (folder / "model.safetensors.index.json").is_file():
        names = sorted(set(read_json(folder, "model.safetensors.index.json")["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"model folder {folder} has no {name}")
        try:
            with safe_open(folder / name, framework="pt") as file:
                tensors.update((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118 (not a mapping)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}") from error
    return tensors
