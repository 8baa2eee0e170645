"""What Qwen3.5-MoE has beside Qwen3-MoE, as modules for Megatron's layer specs.

Megatron-Core 0.16.1 has a gated delta net that takes neither packed streams nor a context-parallel group, and cannot be
built without a CUDA library. This one is made of Megatron's parallel linear layers and of `delta_rule`, and does both.

Invariants: fused rows stand by head group (`mixers`), so a tensor-parallel rank holds consecutive rows of the whole; a
stream sees no other stream; importing this module imports no Megatron.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.config import ModelConfig
from components.trainer.megatron.delta_rule import convolve, scan, solve
from components.trainer.megatron.handover import Streams
from components.trainer.megatron.modules import RMSNorm, similar_runs

DECAY_RANGE = (1.0, 16.0)
"""exp(A_log) of fresh heads is uniform in it."""


def hybrid_settings(model: ModelConfig) -> dict[str, Any]:
    """What Megatron's configuration has for a hybrid model beyond a plain one's; nothing for a plain one.

    The variant itself is not named in it: Megatron would then refuse context parallelism, which its own layer lacks.
    """
    hybrid = model.hybrid
    if hybrid is None:
        return {}
    return {
        "linear_conv_kernel_dim": hybrid.linear_conv_kernel_dim,
        "linear_key_head_dim": hybrid.linear_key_head_dim,
        "linear_value_head_dim": hybrid.linear_value_head_dim,
        "linear_num_key_heads": hybrid.linear_num_key_heads,
        "linear_num_value_heads": hybrid.linear_num_value_heads,
        "attention_output_gate": True,
        "layernorm_zero_centered_gamma": True,
        "moe_shared_expert_intermediate_size": hybrid.shared_expert_intermediate_size,
        "moe_shared_expert_gate": True,
    }


def hybrid_layers(layers: Mapping[int, Any], model: ModelConfig) -> list[Any]:
    """The specs of a hybrid model's layers, from those of a plain one by their places in the whole model."""
    from megatron.core.transformer.spec_utils import ModuleSpec

    made = []
    for place, plain in layers.items():
        layer = copy.deepcopy(plain)  # Megatron hands out one spec for all layers of a kind.
        layer.submodules.mlp.submodules.shared_experts = ModuleSpec(module=SharedExpert)
        if place not in model.full_attention_layers:
            layer.submodules.self_attention = ModuleSpec(module=DeltaNet)
        made.append(layer)
    return made


class Recurrence(nn.Module):
    """What a gated delta net does along its streams: convolution, then the delta rule, from rank to rank.

    Args:
        groups: key heads.
        shared: value heads that one key head serves, one behind the other.
        key_size: D, of a key head.
        value_size: V, of a value head.
        taps: K, of the convolution.
        kind: of the parameters.
    """

    def __init__(self, groups: int, shared: int, key_size: int, value_size: int, taps: int, kind: torch.dtype) -> None:
        super().__init__()
        self.groups, self.shared = groups, shared
        self.sizes = [key_size, key_size, shared * value_size]
        """Rows of a group that are convolved: its query, its key, its values."""
        self.taps = nn.Parameter(torch.zeros(groups * sum(self.sizes), 1, taps, dtype=kind))
        self.dt_bias = nn.Parameter(torch.ones(groups * shared, dtype=kind))
        self.A_log = nn.Parameter(torch.zeros(groups * shared, dtype=kind))

    def draw(self) -> None:
        """Fresh weights, as Hugging Face and Megatron draw them."""
        bound = 1 / math.sqrt(self.taps.shape[-1])
        nn.init.uniform_(self.taps, -bound, bound)
        self.A_log.data.uniform_(*DECAY_RANGE).log_()

    def forward(self, mixed_TC: Tensor, beta_TH: Tensor, alpha_TH: Tensor, streams: Streams) -> Tensor:
        """[T, H, V] from the rank's shards of all streams, in order; β and α before their nonlinearities."""
        lengths = streams.lengths
        window = mixed_TC.new_zeros(len(lengths), self.taps.shape[-1] - 1, mixed_TC.shape[-1])
        window = streams.receive(mixed_TC, window)
        convolved, window = convolve(mixed_TC, self.taps.squeeze(1), window, lengths)
        convolved = F.silu(streams.send(convolved, window)).view(len(mixed_TC), self.groups, -1)
        query, key, value = torch.split(convolved, self.sizes, -1)
        query, key = (x.repeat_interleave(self.shared, 1) for x in (query, key))
        value = value.reshape(len(mixed_TC), self.groups * self.shared, -1)
        kind = torch.promote_types(alpha_TH.dtype, torch.float32)
        decay = -self.A_log.to(kind).exp() * F.softplus(alpha_TH.to(kind) + self.dt_bias)
        runs = similar_runs(lengths)
        sizes = [sum(run) for run in runs]
        inputs = (torch.split(x, sizes) for x in (query, key, value, decay, beta_TH.sigmoid()))
        solved = [solve(*piece) for piece in zip(*inputs, runs, strict=True)]
        state = value.new_zeros(len(lengths), value.shape[1], self.sizes[0], value.shape[2], dtype=kind)
        states = torch.split(streams.receive(solved[0].fresh, state), [len(run) for run in runs])
        outputs, left = zip(*(scan(*each) for each in zip(solved, states, strict=True)), strict=True)
        return streams.send(torch.cat(outputs), torch.cat(left))


class DeltaNet(nn.Module):
    """A gated delta net in the place of attention: a recurrence and a gated norm between two linear layers."""

    def __init__(
        self, config: Any, layer_number: int, cp_comm_type: str | None = None, pg_collection: Any = None
    ) -> None:
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

        super().__init__()
        ranks = pg_collection.tp.size()
        self.groups = config.linear_num_key_heads // ranks
        shared = config.linear_num_value_heads // config.linear_num_key_heads
        self.value_size = config.linear_value_head_dim
        values = shared * self.value_size
        self.sizes = [2 * config.linear_key_head_dim + values, values, shared, shared]
        """Rows of a head group: query, key and values; gates; β; α."""
        self.context = pg_collection.cp if config.context_parallel_size > 1 else None
        self.in_proj = ColumnParallelLinear(
            config.hidden_size,
            config.linear_num_key_heads * sum(self.sizes),
            config=config,
            init_method=config.init_method,
            gather_output=False,
            bias=False,
            tp_group=pg_collection.tp,
        )
        self.core = Recurrence(
            self.groups,
            shared,
            config.linear_key_head_dim,
            self.value_size,
            config.linear_conv_kernel_dim,
            config.params_dtype,
        )
        if config.perform_initialization:
            self.core.draw()
        for parameter in self.core.parameters():
            setattr(parameter, "tensor_model_parallel", ranks > 1)  # noqa: B010
            setattr(parameter, "partition_dim", 0)  # noqa: B010
        plain = copy.copy(config)
        plain.layernorm_zero_centered_gamma = False
        self.out_norm = RMSNorm(plain, self.value_size, config.layernorm_epsilon)
        self.out_proj = RowParallelLinear(
            config.linear_num_value_heads * self.value_size,
            config.hidden_size,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
            tp_group=pg_collection.tp,
        )

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *, packed_seq_params: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor | None]:
        """[T, 1, hidden], of the rank's rows under sequence parallelism; the same back, and no bias."""
        if packed_seq_params is None:
            raise ValueError("this delta net takes packed streams only")
        borders = packed_seq_params.cu_seqlens_q.tolist()
        streams = Streams([end - start for start, end in pairwise(borders)], self.context)
        rows = self.in_proj(hidden_states)[0]
        mixed, gate, beta, alpha = torch.split(rows.view(len(rows), self.groups, -1), self.sizes, -1)
        moved = streams.contiguous(torch.cat([x.flatten(1) for x in (mixed, beta, alpha)], -1))
        inputs = torch.split(moved, [x.flatten(1).shape[1] for x in (mixed, beta, alpha)], -1)
        output = streams.balanced(self.core(*inputs, streams).flatten(1))
        normed = self.out_norm(output.view(len(output), -1, self.value_size))
        gated = normed * F.silu(gate.reshape(normed.shape).to(normed.dtype))
        result: tuple[Tensor, Tensor | None] = self.out_proj(gated.flatten(1).to(hidden_states.dtype).unsqueeze(1))
        return result


class SharedExpert(nn.Module):
    """The expert that every token passes, weighed by a gate of its own."""

    def __init__(self, config: Any, pg_collection: Any, gate: bool, submodules: Any = None) -> None:
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

        super().__init__()
        assert gate
        inner, outer, group = config.moe_shared_expert_intermediate_size, config.hidden_size, pg_collection.tp
        self.linear_fc1 = ColumnParallelLinear(
            outer, 2 * inner, config=config, init_method=config.init_method, gather_output=False, bias=False,
            tp_group=group,
        )  # fmt: skip
        self.linear_fc2 = RowParallelLinear(
            inner, outer, config=config, init_method=config.output_layer_init_method, bias=False,
            input_is_parallel=True, skip_bias_add=True, tp_group=group,
        )  # fmt: skip
        self.gate_weight = nn.Parameter(torch.empty(1, outer, dtype=config.params_dtype))
        if config.perform_initialization:
            config.init_method(self.gate_weight.data)
        setattr(self.gate_weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, 1, hidden], of the rank's rows; the same back."""
        gate, up = self.linear_fc1(hidden)[0].unflatten(-1, (-1, 2)).unbind(-1)
        output: Tensor = self.linear_fc2(F.silu(gate) * up)[0]
        return output * F.linear(hidden, self.gate_weight).sigmoid()
