"""The gated delta rule (Yang et al. 2024) and its short convolution, in plain torch, over streams packed end to end.

    S_t = exp(g_t) S_{t-1} + β_t k_t (v_t - exp(g_t) S_{t-1}ᵀ k_t)ᵀ,   o_t = S_tᵀ q_t

A chunk of C positions is solved at once: its updates are a unit triangular system in the products of its keys, so what
remains one after the other is a single pass over chunks that carries S.

Invariants: a stream sees no other stream; one that is cut anywhere and goes on from the state and the window of its
first part gives what it gives whole. Everything is computed in float32, or in float64 when it is given float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

CHUNK = 64
"""Positions solved at once. The system costs C² a position, the pass over chunks 1/C of a state."""

EPSILON = 1e-6
"""Added to the squared norm of queries and keys."""


def convolve(rows_TC: Tensor, weight_CK: Tensor, window_SKC: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Causal convolution of each channel by itself, over each stream by itself.

    Args:
        rows_TC: streams end to end.
        weight_CK: the last tap meets the position itself.
        window_SKC: the K - 1 rows before each stream; zeros where it begins.
        lengths: of the streams; they sum to T.

    Returns:
        [T, C], and the window that each stream leaves behind.
    """
    taps = weight_CK.shape[1] - 1
    parts = torch.split(rows_TC, list(lengths))
    whole = [torch.cat([window, part]) for window, part in zip(window_SKC.unbind(), parts, strict=True)]
    laid = torch.cat(whole).t().unsqueeze(0)
    # Outputs that mix the end of a stream with the window of the next are computed and dropped.
    every = F.conv1d(laid, weight_CK.unsqueeze(1), groups=len(weight_CK))[0].t()
    kept, start = [], 0
    for length in lengths:
        kept.append(every.narrow(0, start, length))
        start += length + taps
    return torch.cat(kept), torch.stack([stream[len(stream) - taps :] for stream in whole])


@dataclass(frozen=True)
class Chunks:
    """Streams of one run, padded to whole chunks, with everything solved that needs no state.

    Attributes:
        lengths: of the streams.
        fresh: [B, H, N, C, V], what the chunk's own keys and values write.
        reads: [B, H, N, C, D], what of the state before the chunk those writes replace.
        query: [B, H, N, C, D], decayed from the chunk's start.
        key: [B, H, N, C, D], decayed to the chunk's end.
        within: [B, H, N, C, C], attention inside the chunk.
        decay: [B, H, N], of the whole chunk.
    """

    lengths: tuple[int, ...]
    fresh: Tensor
    reads: Tensor
    query: Tensor
    key: Tensor
    within: Tensor
    decay: Tensor


def solve(
    query_THD: Tensor, key_THD: Tensor, value_THV: Tensor, decay_TH: Tensor, beta_TH: Tensor, lengths: Sequence[int]
) -> Chunks:
    """Everything of the rule but the pass over chunks.

    Args:
        query_THD, key_THD: normalised here; the query is scaled by D^-½.
        value_THV: values.
        decay_TH: g, at most 0.
        beta_TH: β, in 0..1.
        lengths: of the streams, whose rows stand end to end. Streams of similar length waste least.
    """
    kind = torch.promote_types(query_THD.dtype, torch.float32)
    size = min(CHUNK, max(lengths))
    count = -(-max(lengths) // size)

    def chunked(x: Tensor) -> Tensor:
        padded = pad_sequence(list(torch.split(x.to(kind), list(lengths))), batch_first=True)
        padded = F.pad(padded, (0, 0) * (padded.ndim - 2) + (0, count * size - padded.shape[1]))
        return padded.reshape(len(padded), count, size, *padded.shape[2:]).movedim(3, 1)

    # Padding has key, β and g of 0: it writes nothing and lets nothing decay.
    query, key = (chunked(_unit(x.to(kind))) for x in (query_THD, key_THD))
    query = query * query.shape[-1] ** -0.5
    value, decay, beta = chunked(value_THV), chunked(decay_TH), chunked(beta_TH).unsqueeze(-1)
    total = decay.cumsum(-1)
    later = torch.ones(size, size, dtype=torch.bool, device=query.device).triu(1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()
    grown = total.exp().unsqueeze(-1)
    system = (key * beta) @ key.mT * between
    right = torch.cat([value * beta, key * beta * grown], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, reads = solved.split([value.shape[-1], key.shape[-1]], -1)
    return Chunks(
        lengths=tuple(lengths),
        fresh=fresh,
        reads=reads,
        query=query * grown,
        key=key * (total[..., -1:] - total).exp().unsqueeze(-1),
        within=query @ key.mT * between,
        decay=total[..., -1].exp(),
    )


def scan(chunks: Chunks, state_BHDV: Tensor) -> tuple[Tensor, Tensor]:
    """The pass over chunks: [T, H, V] for the streams end to end, and the state that each leaves behind."""
    state, outputs = state_BHDV, []
    for place in range(chunks.decay.shape[2]):
        written = chunks.fresh[:, :, place] - chunks.reads[:, :, place] @ state
        outputs.append(chunks.query[:, :, place] @ state + chunks.within[:, :, place] @ written)
        state = state * chunks.decay[:, :, place, None, None] + chunks.key[:, :, place].mT @ written
    padded = torch.cat(outputs, 2).transpose(1, 2)
    return torch.cat([stream[:length] for stream, length in zip(padded.unbind(), chunks.lengths, strict=True)]), state


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)
