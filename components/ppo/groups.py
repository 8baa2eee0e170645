"""The baselines' judgement: a trial against the others of its task (GRPO, GSPO).

Invariant: a group is judged by itself, whatever its size; what carries no signal gets exactly 0 and is counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAME = 1e-6
"""A group whose deviation is below this share of its magnitude differs by rounding alone: it carries no signal."""


def group_advantages(rewards_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """(reward - group mean) / group deviation, each group by itself, in the rewards' precision, at least float32.

    The deviation is the unbiased one. A group of one, or of equal rewards, carries no signal and gets exactly 0.
    """
    group_B, _, mean_G, deviation_G, flat_G = _moments(rewards_B, group_ids_B)
    centred_B = rewards_B.double() - mean_G[group_B]
    scaled_B = torch.where(flat_G[group_B], 0.0, centred_B / deviation_G[group_B])
    return scaled_B.to(torch.promote_types(rewards_B.dtype, torch.float32))


def group_statistics(rewards_B: Tensor, group_ids_B: Tensor) -> dict[str, float]:
    """What the groups of a batch could teach, a reward a trial.

    Returns:
        `count` and `size_mean` of the groups; `single`, groups of one trial, and `compared`, the others. Over those:
        `zero_variance`, the share whose rewards are all equal; `all_zero`, the share whose rewards are all 0; and
        `deviation_mean`. All three are absent when no group can be compared.
    """
    _, size_G, mean_G, deviation_G, flat_G = _moments(rewards_B, group_ids_B)
    several_G = size_G > 1
    compared = int(several_G.sum())
    statistics = {
        "count": float(len(size_G)),
        "size_mean": float(size_G.double().mean()),
        "single": float(len(size_G) - compared),
        "compared": float(compared),
    }
    if compared:
        flat_G &= several_G
        statistics |= {
            "zero_variance": float(flat_G.sum()) / compared,
            "all_zero": float((flat_G & (mean_G == 0)).sum()) / compared,
            "deviation_mean": float(deviation_G[several_G].mean()),
        }
    return statistics


def _moments(rewards_B: Tensor, group_ids_B: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Group of each trial; size, mean, unbiased deviation of each group, and whether it is flat."""
    rewards = rewards_B.double()
    _, group_B, size_G = torch.unique(group_ids_B, return_inverse=True, return_counts=True)

    def group_sum(x_B: Tensor) -> Tensor:
        return torch.zeros(len(size_G), dtype=torch.float64, device=x_B.device).index_add_(0, group_B, x_B)

    mean_G = group_sum(rewards) / size_G
    centred_B = rewards - mean_G[group_B]
    deviation_G = (group_sum(centred_B.square()) / (size_G - 1).clamp(min=1)).sqrt()
    return group_B, size_G, mean_G, deviation_G, deviation_G <= SAME * mean_G.abs()
