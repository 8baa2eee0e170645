"""Advantages: masked generalised advantage estimation (paper Eq 16) and the per-group baseline.

Invariant: only trainable tokens are steps of the decision process. The successor of a trainable token is the next
trainable token of its row, so an observation is neither bootstrapped from nor discounted over, and a reward that stands
on an observation is earned by the last action before it.

The recurrence A_i = delta_i + (gamma lambda) A_{i+1} is a linear scan. It runs in float64 on the trainable tokens
alone, block by block: one matrix product scans every block, the block heads are scanned the same way, and their results
are carried back in.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32
"""Tokens scanned by one row of the matrix product; beyond this the product costs more than the levels it saves."""

SAME = 1e-6
"""A group whose deviation is below this share of its magnitude differs by rounding alone: it carries no signal."""


def advantages(
    rewards_BN: Tensor, values_BN: Tensor, mask_BN: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Masked advantages and returns (Eq 16); both are 0 where the mask is 0.

    Args:
        rewards_BN: reward on each token; see `place_terminal` for one reward a row.
        values_BN: V_old before each token is sampled. Values on observations are never read.
        mask_BN: nonzero on trainable tokens.
        gamma: discount a trainable token.
        lam: trace decay a trainable token.

    Returns:
        Advantages and returns (advantages + values), in the values' precision, at least float32.
    """
    if not (rewards_BN.shape == values_BN.shape == mask_BN.shape) or mask_BN.ndim != 2:
        shapes = [list(x.shape) for x in (rewards_BN, values_BN, mask_BN)]
        raise ValueError(f"rewards, values and mask must share one shape [B, N], got {shapes}")
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"gamma and lambda must lie in [0, 1], got {gamma} and {lam}")
    with torch.no_grad():
        steps_S, borders = _steps(mask_BN)
        counts = (borders[1:] - borders[:-1]).tolist()
        values_S = _take(values_BN, steps_S).to(torch.float64, copy=True)
        next_S = torch.empty_like(values_S)
        next_S[:-1] = values_S[1:]
        next_S[borders[1:][borders[1:] > borders[:-1]] - 1] = 0  # nothing follows the last action of a row
        delta_S = _step_rewards(rewards_BN, steps_S, borders).add_(next_S, alpha=gamma).sub_(values_S)
        advantages_S = _scan_rows(delta_S, counts, gamma * lam)
        returns_S = values_S.add_(advantages_S)
        dtype = torch.promote_types(values_BN.dtype, torch.float32)
        return _put(advantages_S.to(dtype), steps_S, mask_BN), _put(returns_S.to(dtype), steps_S, mask_BN)


def place_terminal(rewards_B: Tensor, mask_BN: Tensor) -> Tensor:
    """One reward a row, put on its last trainable token; a row without one stays all zeros (Algorithm 2)."""
    mask_BN = mask_BN.bool()
    length = mask_BN.shape[1]
    last_B = length - 1 - mask_BN.flip(1).to(torch.uint8).argmax(1)
    rewards_BN = torch.zeros(mask_BN.shape, dtype=rewards_B.dtype, device=rewards_B.device)
    earned_B = torch.where(mask_BN.any(1), rewards_B, torch.zeros_like(rewards_B))
    return rewards_BN.scatter_(1, last_B[:, None], earned_B[:, None])


def group_advantages(rewards_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """GRPO's baseline: (reward - group mean) / group deviation, each group by itself.

    The deviation is the unbiased one. A group of one, or of equal rewards, carries no signal and gets exactly 0.
    """
    rewards = rewards_B.double()
    _, group_B, size_G = torch.unique(group_ids_B, return_inverse=True, return_counts=True)

    def group_sum(x_B: Tensor) -> Tensor:
        return torch.zeros(len(size_G), dtype=torch.float64, device=x_B.device).index_add_(0, group_B, x_B)

    mean_G = group_sum(rewards) / size_G
    centred_B = rewards - mean_G[group_B]
    deviation_G = (group_sum(centred_B.square()) / (size_G - 1).clamp(min=1)).sqrt()
    flat_G = deviation_G <= SAME * mean_G.abs()
    scaled_B = torch.where(flat_G[group_B], 0.0, centred_B / deviation_G[group_B])
    return scaled_B.to(torch.promote_types(rewards_B.dtype, torch.float32))


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


def _steps(mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices of the trainable tokens, and where each row's begin and end among them."""
    flat = mask_BN.bool().reshape(-1)
    # NumPy finds the set bits of a CPU mask without branches: up to eight times faster on scattered masks.
    cpu = flat.device.type == "cpu"
    steps_S = torch.from_numpy(np.flatnonzero(flat.numpy())) if cpu else flat.nonzero().view(-1)
    edges = torch.arange(len(mask_BN) + 1, device=flat.device) * mask_BN.shape[1]
    return steps_S, torch.searchsorted(steps_S, edges)


def _take(x_BN: Tensor, steps_S: Tensor) -> Tensor:
    flat = x_BN.reshape(-1)
    return flat if len(steps_S) == len(flat) else flat.index_select(0, steps_S)


def _put(x_S: Tensor, steps_S: Tensor, like_BN: Tensor) -> Tensor:
    if len(x_S) == like_BN.numel():
        return x_S.view(like_BN.shape)
    return x_S.new_zeros(like_BN.numel()).index_copy_(0, steps_S, x_S).view(like_BN.shape)


def _step_rewards(rewards_BN: Tensor, steps_S: Tensor, borders: Tensor) -> Tensor:
    """Reward of each trainable token, with what stands on the observations after it. Always a fresh tensor."""
    own_S = _take(rewards_BN, steps_S).to(torch.float64, copy=True)
    if torch.count_nonzero(rewards_BN) == torch.count_nonzero(own_S):
        return own_S
    before = F.pad(rewards_BN.reshape(-1).double().cumsum(0), (1, 0))
    until_S = torch.empty_like(steps_S)
    until_S[:-1] = steps_S[1:]
    filled = borders[1:] > borders[:-1]
    ends = torch.arange(1, len(borders), device=steps_S.device) * rewards_BN.shape[1]
    until_S[borders[1:][filled] - 1] = ends[filled]
    return before[until_S] - before[steps_S]


def _scan_rows(delta_S: Tensor, counts: list[int], decay: float) -> Tensor:
    """Scans each row's run of `delta_S`, from its end to its beginning."""
    if not len(delta_S):
        return delta_S
    width = -(-max(counts) // BLOCK) * BLOCK
    if all(count == width for count in counts):
        return _scan(delta_S.view(len(counts), width), decay).view(-1)
    rows_BW = delta_S.new_zeros(len(counts), width)
    for row_W, run in zip(rows_BW, torch.split(delta_S, counts), strict=True):
        row_W[: len(run)] = run
    scanned_BW = _scan(rows_BW, decay)
    return torch.cat([row_W[:count] for row_W, count in zip(scanned_BW, counts, strict=True)])


def _scan(x_BW: Tensor, decay: float) -> Tensor:
    """y_i = x_i + decay * y_{i+1} along the last axis, whose length is a multiple of `BLOCK`."""
    rows, width = x_BW.shape
    place = torch.arange(BLOCK, dtype=torch.float64, device=x_BW.device)
    distance = place[:, None] - place[None, :]
    kernel = torch.where(distance >= 0, decay ** distance.clamp(min=0), 0.0)
    y = (x_BW.reshape(-1, BLOCK) @ kernel).view(rows, width // BLOCK, BLOCK)
    if width == BLOCK:
        return y.view(rows, width)
    heads = y[:, 1:, 0]
    carry = _scan(F.pad(heads, (0, -heads.shape[1] % BLOCK)), decay**BLOCK)[:, : heads.shape[1]]
    y[:, :-1].addcmul_(carry[:, :, None], decay ** (BLOCK - place))
    return y.view(rows, width)
