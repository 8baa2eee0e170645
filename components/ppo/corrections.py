"""Weights against the gap between the engine that sampled and the one that trains.

All are functions of ρ = π(trainer) / π(sampler), both at the generating weights and the sampling temperature. The paper
applies none: with the sampled tokens and the recorded experts there is little left to correct. They exist for engines
without replay, for comparisons, and to be measured.

Invariant: a weight is finite, not negative, outside autograd, and 1 where the two engines agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from components.ppo.objective import stream_means

LOG_LIMIT = 20.0
"""|log ρ| is cut here: beyond, exp says nothing but overflow."""


def tis_weights(log_ratio_N: Tensor, *, cap: float) -> Tensor:
    """Truncated importance sampling: min(ρ, cap), a token."""
    return _ratio(log_ratio_N).clamp(max=cap)


def icepop_weights(log_ratio_N: Tensor, *, low: float, high: float) -> Tensor:
    """IcePop: ρ inside [low, high], 0 outside, a token."""
    ratio_N = _ratio(log_ratio_N)
    return torch.where((ratio_N >= low) & (ratio_N <= high), ratio_N, torch.zeros_like(ratio_N))


def sequence_k3_weights(log_ratio_N: Tensor, mask_N: Tensor, stream_N: Tensor, *, limit: float) -> Tensor:
    """1 on the tokens of streams whose mean of ρ - log ρ - 1 is at most `limit`, 0 on the others'."""
    cut_N = log_ratio_N.detach().double().clamp(-LOG_LIMIT, LOG_LIMIT)
    mean_S = stream_means(torch.expm1(cut_N) - cut_N, mask_N, stream_N)
    return (mean_S <= limit)[stream_N].to(log_ratio_N.dtype)


def sequence_ratio_weights(log_ratio_N: Tensor, mask_N: Tensor, stream_N: Tensor, *, low: float, high: float) -> Tensor:
    """1 on the tokens of streams whose geometric mean of ρ lies in [low, high], 0 on the others'."""
    mean_S = stream_means(log_ratio_N.detach().double(), mask_N, stream_N).exp()
    return ((mean_S >= low) & (mean_S <= high))[stream_N].to(log_ratio_N.dtype)


def _ratio(log_ratio_N: Tensor) -> Tensor:
    return log_ratio_N.detach().clamp(-LOG_LIMIT, LOG_LIMIT).exp()
