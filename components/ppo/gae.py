"""Masked generalised advantage estimation (paper Eq 16).

Invariant: only trainable tokens are steps of the decision process. The successor of a trainable token is the next
trainable token of its row, so an observation is neither bootstrapped from nor discounted over, and a reward that stands
on an observation is earned by the last action before it.

Estimation runs on the returns, R_i = r_i + gamma (1 - lambda) V_{i+1} + (gamma lambda) R_{i+1}, A_i = R_i - V_i: a
linear scan over the trainable tokens of a row, in float64 on the CPU wherever the tensors live (NumPy's calls cost
a fifth of torch's). Blocks are scanned by one matrix product, their heads by the same scan one level up.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Float64 = NDArray[np.float64]

BLOCK = 16
"""Tokens scanned by one row of the matrix product; more costs flops, fewer costs levels. Measured best of 8 to 64."""


def advantages(
    rewards_BN: Tensor, values_BN: Tensor, mask_BN: Tensor, *, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Masked advantages and returns (Eq 16); both are 0 where the mask is 0.

    Args:
        rewards_BN: reward on each token; see `place_terminal` for one reward a row.
        values_BN: V_old before each token is sampled. Values on observations are never read.
        mask_BN: nonzero on trainable tokens.
        gamma: discount a trainable token.
        lam: trace decay a trainable token; one number, or one a row ([B]).

    Returns:
        Advantages and returns (advantages + values), in the values' precision, at least float32.

    Raises:
        ValueError: shapes differ, or a discount lies outside [0, 1].
    """
    if not rewards_BN.shape == values_BN.shape == mask_BN.shape or mask_BN.ndim != 2:
        shapes = [list(x.shape) for x in (rewards_BN, values_BN, mask_BN)]
        raise ValueError(f"rewards, values and mask must share one shape [B, N], got {shapes}")
    lam_B = torch.as_tensor(lam, dtype=torch.float64).expand(len(mask_BN)).tolist()
    if not all(0 <= x <= 1 for x in (gamma, *lam_B)):
        raise ValueError(f"gamma and lambda must lie in [0, 1], got {gamma} and {lam}")
    dtype = torch.promote_types(values_BN.dtype, torch.float32)
    rewards, values, mask = (x.detach().cpu() for x in (rewards_BN.to(dtype), values_BN.to(dtype), mask_BN.bool()))
    advantages_BN, returns_BN = torch.zeros_like(values), torch.zeros_like(values)
    rows = (x.numpy() for x in (rewards, values, mask, advantages_BN, returns_BN))
    for row_lam, rewards_N, values_N, mask_N, row_advantages_N, row_returns_N in zip(lam_B, *rows, strict=True):
        steps = slice(None) if mask_N.all() else np.flatnonzero(mask_N)
        values_S = values_N[steps].astype(np.float64)
        returns_S = _returns(_step_rewards(rewards_N, steps), values_S, gamma, row_lam)
        row_returns_N[steps] = returns_S.astype(values_N.dtype)
        row_advantages_N[steps] = (returns_S - values_S).astype(values_N.dtype)
    return advantages_BN.to(values_BN.device), returns_BN.to(values_BN.device)


def place_terminal(rewards_B: Tensor, mask_BN: Tensor) -> Tensor:
    """One reward a row, put on its last trainable token; a row without one stays all zeros (Algorithm 2)."""
    mask_BN = mask_BN.bool()
    length = mask_BN.shape[1]
    last_B = length - 1 - mask_BN.flip(1).to(torch.uint8).argmax(1)
    rewards_BN = torch.zeros(mask_BN.shape, dtype=rewards_B.dtype, device=rewards_B.device)
    earned_B = torch.where(mask_BN.any(1), rewards_B, torch.zeros_like(rewards_B))
    return rewards_BN.scatter_(1, last_B[:, None], earned_B[:, None])


def length_adaptive_lambda(mask_BN: Tensor, alpha: float) -> Tensor:
    """float64[B]: λ = 1 - 1/(α l) of a row with l trainable tokens, at least 0 (VAPO, arXiv 2504.05118).

    The trace of a long row then reaches over a fixed share of it, where one λ for all would soon fade.
    """
    length_B = mask_BN.bool().sum(1).double()
    return (1 - 1 / (alpha * length_B)).clamp(min=0)


def moments(values: Tensor, mask: Tensor) -> tuple[float, float]:
    """Mean and population deviation over the mask; NaN when it is empty."""
    chosen = values[mask.bool()].double()
    if not len(chosen):
        return float("nan"), float("nan")
    return float(chosen.mean()), float(chosen.std(correction=0))


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages of mean 0 and deviation 1 over the mask, 0 elsewhere. Off in the paper; give it the whole batch."""
    mean, deviation = moments(advantages, mask)
    if not deviation > 0:
        return torch.zeros_like(advantages)
    return torch.where(mask.bool(), (advantages - mean) / deviation, torch.zeros_like(advantages))


def _step_rewards(rewards_N: NDArray[np.floating], steps: slice | NDArray[np.intp]) -> NDArray[np.floating]:
    """Reward of each trainable token, with what stands on the observations after it."""
    own_S = rewards_N[steps]
    if isinstance(steps, slice) or not len(steps) or np.count_nonzero(rewards_N != 0) == np.count_nonzero(own_S != 0):
        return own_S
    return np.add.reduceat(rewards_N.astype(np.float64), steps)


def _returns(rewards_S: NDArray[np.floating], values_S: Float64, gamma: float, lam: float) -> Float64:
    """The recurrence of one row's trainable tokens, from the last to the first."""
    steps = len(values_S)
    input_S = np.zeros(-(-steps // BLOCK) * BLOCK)
    input_S[:steps] = rewards_S
    if lam < 1:
        input_S[: steps - 1] += gamma * (1 - lam) * values_S[1:]
    return _scan(input_S.reshape(-1, BLOCK), gamma * lam)[:steps]


def _scan(x: Float64, decay: float) -> Float64:
    """y_i = x_i + decay * y_{i+1} over all of `x`, given as its blocks; `x` is scratch."""
    kernel = _kernel(decay)
    if len(x) > 1:
        heads = np.zeros(-(-(len(x) - 1) // BLOCK) * BLOCK)
        heads[: len(x) - 1] = x[1:] @ kernel[:, 0]
        x[:-1, -1] += decay * _scan(heads.reshape(-1, BLOCK), decay**BLOCK)[: len(x) - 1]
    return (x @ kernel).reshape(-1)


@lru_cache(maxsize=64)
def _kernel(decay: float) -> Float64:
    """kernel[k, i] = decay^(k-i) for k >= i: a row of a block times this is the block scanned."""
    place = np.arange(BLOCK)
    distance = place[:, None] - place[None, :]
    return np.where(distance >= 0, decay ** np.maximum(distance, 0.0), 0.0)
