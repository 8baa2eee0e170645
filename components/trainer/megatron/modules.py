"""The modules put into Megatron's layer specs where its own need CUDA, Transformer Engine or a compiler.

Invariant: each takes the place, the constructor and the call of the Megatron module it stands in for, so a layer spec
decides which one runs and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PADDING_SHARE = 0.25
"""Share of padding that attention accepts to handle several streams in one call."""


class PackedAttention(nn.Module):
    """Causal attention over streams packed end to end (`qkv_format="thd"`), by scaled-dot-product attention.

    Streams of similar length share one padded call; padding stands behind every real token, so causality hides it.

    Under context parallelism a rank has two pieces of every stream (`trainer.sharding`). It gathers the keys and values
    of all ranks, and each of its pieces attends to what stands before it.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__()
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.context: Any = pg_collection.cp if config.context_parallel_size > 1 else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """[T, heads, d] each; gives [T, heads * d]."""
        if packed_seq_params is None:
            raise ValueError("this attention takes packed streams only")
        borders = packed_seq_params.cu_seqlens_q.tolist()
        lengths = [end - start for start, end in pairwise(borders)]
        if self.context is not None:
            return self._over_ranks(query, key, value, lengths)
        runs = similar_runs(lengths)
        # The gradient of a split is one concatenation; that of a slice would be a whole tensor of zeros for each run.
        sizes = [sum(run) for run in runs]
        parts = zip(*(torch.split(x, sizes) for x in (query, key, value)), strict=True)
        outputs = [self._attend(q, k, v, run) for (q, k, v), run in zip(parts, runs, strict=True)]
        return torch.cat(outputs).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
        width = max(lengths)
        whole = all(length == width for length in lengths)
        places = None if whole else _places(lengths, width, query.device)

        def spread(x: Tensor) -> Tensor:
            if places is not None:
                x = x.new_zeros(len(lengths) * width, *x.shape[1:]).index_copy(0, places, x)
            return x.view(len(lengths), width, *x.shape[1:]).transpose(1, 2)

        output = F.scaled_dot_product_attention(
            spread(query),
            spread(key),
            spread(value),
            is_causal=True,
            scale=self.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        flat = output.transpose(1, 2).flatten(0, 1)
        return flat if places is None else flat.index_select(0, places)

    def _over_ranks(self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
        from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

        rank, ranks = self.context.rank(), self.context.size()
        heads = key.shape[1]
        gathered = gather_from_sequence_parallel_region(torch.cat([key, value], 1), group=self.context)
        pieces = [length // (2 * ranks) for length in lengths for _ in range(2)]
        # Laid out [rank][stream][first piece, last piece]; per stream, the pieces are wanted in their own order.
        laid = torch.split(gathered, pieces * ranks)
        outputs = []
        for place, own in enumerate(torch.split(query, pieces)):
            first = place - place % 2
            front = [laid[r * len(pieces) + first] for r in range(ranks)]
            back = [laid[r * len(pieces) + first + 1] for r in reversed(range(ranks))]
            number = rank if place == first else 2 * ranks - 1 - rank
            seen = torch.cat([*front, *back][: number + 1])
            outputs.append(self._attend_behind(own, seen[:, :heads], seen[:, heads:]))
        return torch.cat(outputs).flatten(1)

    def _attend_behind(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The last rows of a stream attend to all rows up to their own."""
        rows, seen = len(query), len(key)
        mask = torch.ones(rows, seen, dtype=torch.bool, device=query.device).tril(seen - rows)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        output = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return output.squeeze(0).transpose(0, 1)


def similar_runs(lengths: Sequence[int]) -> list[list[int]]:
    """Cuts `lengths` into runs whose padding to their longest stays within `PADDING_SHARE`."""
    runs: list[list[int]] = []
    for length in lengths:
        if runs:
            run = runs[-1]
            width = max(*run, length)
            if width * (len(run) + 1) * (1 - PADDING_SHARE) <= sum(run) + length:
                run.append(length)
                continue
        runs.append([length])
    return runs


def _places(lengths: Sequence[int], width: int, device: torch.device) -> Tensor:
    return torch.cat([torch.arange(n) + i * width for i, n in enumerate(lengths)]).to(device)


class RMSNorm(nn.Module):
    """Megatron's local norm refuses sequence parallelism and weights around zero; this one knows both."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.centre = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        self.weight = nn.Parameter(torch.full((hidden_size,), 1.0 - self.centre, dtype=config.params_dtype))
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010  (Megatron reads it)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.centre if self.centre else self.weight
        result: Tensor = _RMSNorm.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return result


class _RMSNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * w. On a CPU the built-in one is a chain of elementwise passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps)).unsqueeze(-1)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        normed, scale, weight = ctx.saved_tensors
        width = normed.shape[-1]
        weight_gradient = (gradient * normed).view(-1, width).sum(0)
        inner = gradient * weight
        along = torch.linalg.vecdot(inner, normed).div_(width).unsqueeze(-1)
        return inner.addcmul_(normed, along, value=-1).mul_(scale), weight_gradient, None


class StackedExperts(nn.Module):
    """All local experts in two parameters, multiplied by one grouped matrix product each.

    `linear_fc1` is [E, 2I, H], gate rows above up rows; `linear_fc2` is [E, H, I]. An expert is never cut; under
    tensor parallelism every rank of it runs its own rows through its own copy.
    """

    def __init__(self, num_local_experts: int, config: Any, submodules: Any = None, pg_collection: Any = None) -> None:
        super().__init__()
        inner, outer = config.moe_ffn_hidden_size, config.hidden_size
        self.linear_fc1 = nn.Parameter(torch.empty(num_local_experts, 2 * inner, outer, dtype=config.params_dtype))
        self.linear_fc2 = nn.Parameter(torch.empty(num_local_experts, outer, inner, dtype=config.params_dtype))
        if config.perform_initialization:
            config.init_method(self.linear_fc1.data)
            config.output_layer_init_method(self.linear_fc2.data)
        alone = config.expert_model_parallel_size == config.tensor_model_parallel_size == 1
        for parameter in (self.linear_fc1, self.linear_fc2):
            # Megatron reduces the gradients of experts over another group, and counts each of their norms.
            setattr(parameter, "allreduce", alone)  # noqa: B010
            setattr(parameter, "tensor_model_parallel", not alone)  # noqa: B010

    def forward(self, hidden: Tensor, tokens_per_expert: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        """Tokens sorted by expert, [T*K, H]; gives the gated outputs in the same order, and no bias."""
        ends = tokens_per_expert.cumsum(0).to(device=hidden.device, dtype=torch.int32)
        gate, up = F.grouped_mm(hidden, self.linear_fc1.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        inner = F.silu(gate) * up * probs.unsqueeze(-1)
        return F.grouped_mm(inner, self.linear_fc2.transpose(1, 2), offs=ends), None


class ValueHead(nn.Module):
    """Stands in for the output layer: `width` float32 numbers a position, a value or the logits of its bins.

    Zeros at first, so a fresh critic predicts 0, or all bins alike. It is given whole rows (`RowSelector` gathers
    them), so every tensor-parallel rank computes the same gradient.
    """

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        return F.linear(input_.float(), self.weight, self.bias), None


class RowSelector:
    """Lets only the chosen positions through to an output layer: logits elsewhere would be computed for nothing.

    Under sequence parallelism the rows are gathered first, and the output layer is told that they are.
    """

    def __init__(self, output_layer: nn.Module, config: Any) -> None:
        from megatron.core.tensor_parallel import ColumnParallelLinear

        self.rows: Tensor | None = None
        self._gathers = bool(config.sequence_parallel)
        # A vocabulary-parallel layer leaves each rank a part of the rows' gradient; a value head the same whole one.
        self._partial = isinstance(output_layer, ColumnParallelLinear)
        if self._gathers and isinstance(output_layer, ColumnParallelLinear):
            output_layer.sequence_parallel = False
            output_layer.disable_grad_reduce = True
        output_layer.register_forward_pre_hook(self._select)

    def _select(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

        assert self.rows is not None
        hidden = inputs[0]
        if self._gathers:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=self._partial)
        return (hidden.index_select(0, self.rows), *inputs[1:])
