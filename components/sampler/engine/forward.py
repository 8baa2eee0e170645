"""The forward pass of a mixed batch: one token of every decoding sequence, and chunks of prompts.

All products run over the tokens of the whole batch at once. Attention of decoding rows runs over runs of neighbouring
slots, as views of the cache without a copy; attention of a prompt chunk runs chunk by chunk.

Invariant: a token's result depends on its own sequence alone, up to the order of float additions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from components.sampler.engine.architecture import Architecture
from components.sampler.engine.cache import SlotCache
from components.sampler.engine.weights import LayerWeights, Weights

# Tokens times experts up to which computing every expert in two products beats sorting tokens by expert (measured).
_DENSE_LIMIT = 512


@dataclass(slots=True)
class DecodeRun:
    """Rows [row, row + count) decode in slots [slot, slot + count); none looks beyond `span` positions."""

    row: int
    slot: int
    count: int
    span: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [row, row + end - start) are positions [start, end) of the prompt in `slot`."""

    row: int
    slot: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step computes. Row tensors cover decoding rows first, then the chunks.

    Attributes:
        positions: int64[n].
        flat: int64[n], rows of (slot, position) in the token buffers.
        kv: int64[n * kv_heads], rows of (slot, head, position) in the key and value buffers.
        output_rows: rows whose logits are wanted, or None for all.
    """

    positions: Tensor
    flat: Tensor
    kv: Tensor
    runs: list[DecodeRun]
    chunks: list[Chunk]
    output_rows: Tensor | None


class Model:
    """Weights, rotary table and cache: computes logits of a batch and leaves keys, values and routing in the cache."""

    def __init__(self, arch: Architecture, weights: Weights, cache: SlotCache) -> None:
        self.arch, self.weights, self.cache = arch, weights, cache
        self._rotation = _rotary_table(arch, cache.context)
        self._router_dtype = weights.layers[0].router.dtype
        self._masks: dict[tuple[int, int], Tensor] = {}

    def logits(self, batch: Batch) -> Tensor:
        """Computes float32 logits [rows, vocab] of the batch's output rows."""
        weights, cache = self.weights, self.cache
        tokens = cache.tokens.view(-1).index_select(0, batch.flat)
        x = weights.embedding.index_select(0, tokens)
        rotation = self._rotation.index_select(0, batch.positions)[:, None]
        self._masks.clear()
        experts = []
        for index, layer in enumerate(weights.layers):
            attended = self._attention(index, layer, self._norm(x, layer.attention_norm), rotation, batch)
            x = torch.addmm(x, attended, layer.output)
            x, chosen = self._experts(layer, x)
            experts.append(chosen)
        if cache.routing is not None:
            record = torch.stack(experts, 1).to(cache.routing.dtype)
            cache.routing.view(-1, *cache.routing.shape[2:]).index_copy_(0, batch.flat, record)
        if batch.output_rows is not None:
            x = x.index_select(0, batch.output_rows)
        return (self._norm(x, weights.norm) @ weights.head).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.arch.hidden,), weight, self.arch.norm_eps)

    def _attention(self, index: int, layer: LayerWeights, h: Tensor, rotation: Tensor, batch: Batch) -> Tensor:
        arch, cache = self.arch, self.cache
        n, dim, rotated = len(h), arch.head_dim, arch.heads + arch.kv_heads
        qkv = h @ layer.qkv
        qk = qkv[:, : rotated * dim].float().reshape(n, rotated, dim)
        qk = F.rms_norm(qk, (dim,), None, arch.norm_eps).mul_(layer.head_norm)
        turned = torch.view_as_complex(qk.view(n, rotated, dim // 2, 2)).mul_(rotation)
        qk = torch.view_as_real(turned).view(n, rotated, dim).to(h.dtype)
        q, k, v = qk[:, : arch.heads], qk[:, arch.heads :], qkv[:, rotated * dim :]
        keys, values = cache.keys[index], cache.values[index]
        keys.view(-1, dim).index_copy_(0, batch.kv, k.reshape(-1, dim))
        values.view(-1, dim).index_copy_(0, batch.kv, v.reshape(-1, dim))
        q = q.contiguous()
        out = torch.empty_like(q)
        for run in batch.runs:
            self._decode_run(run, q, keys, values, out)
        for chunk in batch.chunks:
            self._prompt_chunk(chunk, q, keys, values, out)
        return out.view(n, -1)

    def _decode_run(self, run: DecodeRun, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        heads, group = self.arch.kv_heads, self.arch.heads // self.arch.kv_heads
        low, high = run.slot * heads, (run.slot + run.count) * heads
        shape = (run.count * heads, group, self.arch.head_dim)
        query = q[run.row : run.row + run.count].view(shape)
        scores = torch.bmm(query, keys[low:high, : run.span].transpose(1, 2))
        mask = self.cache.mask[run.slot : run.slot + run.count, None, None, : run.span]
        scores.view(run.count, heads, group, run.span).add_(mask)
        weighted = out[run.row : run.row + run.count].view(shape)
        torch.bmm(scores.softmax(-1), values[low:high, : run.span], out=weighted)

    def _prompt_chunk(self, chunk: Chunk, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        heads = self.arch.kv_heads
        rows = slice(chunk.row, chunk.row + chunk.end - chunk.start)
        own = slice(chunk.slot * heads, (chunk.slot + 1) * heads)
        attended = F.scaled_dot_product_attention(
            q[rows].transpose(0, 1)[None],
            keys[own, : chunk.end][None],
            values[own, : chunk.end][None],
            attn_mask=self._causal(chunk, q.dtype) if chunk.start else None,
            is_causal=not chunk.start,
            scale=1.0,  # folded into the q norm
            enable_gqa=heads != self.arch.heads,
        )
        out[rows] = attended[0].transpose(0, 1)

    def _causal(self, chunk: Chunk, dtype: torch.dtype) -> Tensor:
        """Additive mask of a chunk with history, made once a step for all layers."""
        key = (chunk.start, chunk.end)
        mask = self._masks.get(key)
        if mask is None:
            hidden = torch.arange(chunk.end) > torch.arange(chunk.start, chunk.end)[:, None]
            mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
            self._masks[key] = mask
        return mask

    def _experts(self, layer: LayerWeights, x: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the layer's experts to the residual. Returns it, and the chosen experts in descending order."""
        arch = self.arch
        h = self._norm(x, layer.expert_norm)
        probs = (h.to(self._router_dtype) @ layer.router).float().softmax(-1)
        share, chosen = probs.topk(arch.topk, -1)
        if arch.norm_topk:
            share = share / share.sum(-1, keepdim=True)
        mix = _dense_experts if len(h) * arch.experts <= _DENSE_LIMIT else _sorted_experts
        return mix(arch, layer, x, h, share.to(h.dtype), chosen), chosen


def _dense_experts(
    arch: Architecture, layer: LayerWeights, x: Tensor, h: Tensor, share: Tensor, chosen: Tensor
) -> Tensor:
    """Every expert for every token, the unchosen ones with share 0: two products, right for few tokens."""
    n, ff = len(h), arch.expert_hidden
    shares = h.new_zeros(n, arch.experts).scatter_(1, chosen, share)
    hidden = (h @ layer.gate_up).view(n, arch.experts, 2, ff)
    active = F.silu(hidden[:, :, 0]).mul_(hidden[:, :, 1]).mul_(shares[:, :, None])
    return torch.addmm(x, active.view(n, -1), layer.down)


def _sorted_experts(
    arch: Architecture, layer: LayerWeights, x: Tensor, h: Tensor, share: Tensor, chosen: Tensor
) -> Tensor:
    """Tokens sorted by expert, one product an expert: right for many tokens or many experts."""
    ff = arch.expert_hidden
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    token = order // arch.topk
    gathered = h.index_select(0, token)
    mixed = torch.empty_like(gathered)
    start = 0
    for expert, count in enumerate(torch.bincount(flat, minlength=arch.experts).tolist()):
        if count:
            rows = slice(start, start + count)
            hidden = gathered[rows] @ layer.gate_up[:, expert * 2 * ff : (expert + 1) * 2 * ff]
            active = F.silu(hidden[:, :ff]).mul_(hidden[:, ff:])
            torch.mm(active, layer.down[expert * ff : (expert + 1) * ff], out=mixed[rows])
            start += count
    mixed.mul_(share.reshape(-1).index_select(0, order)[:, None])
    return x.index_add(0, token, mixed)


def _rotary_table(arch: Architecture, context: int) -> Tensor:
    # The order of operations is transformers', so that angles agree to the last bit.
    inverse = 1.0 / arch.rope_theta ** (torch.arange(0, arch.head_dim, 2, dtype=torch.float32) / arch.head_dim)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * inverse
    return torch.polar(torch.ones_like(angles), angles)
