"""Explained variance of the critic (paper Eq 19).

Invariant: both variances are taken over all tokens of all ranks, once. Averaging per-rank ratios is biased, because a
rank whose returns happen to agree divides by almost nothing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from components.ppo.groups import SAME


def explained_variance(returns: Tensor, values: Tensor, mask: Tensor, group: dist.ProcessGroup | None = None) -> float:
    """1 - Var[R - V] / Var[R] over the loss region, over all ranks of `group` when one is given.

    NaN when it is undefined: no token, or returns that do not vary beyond rounding (`SAME`).
    """
    chosen = mask.bool()
    target = returns[chosen].detach().double()
    error = target - values[chosen].detach().double()
    count = target.new_tensor(float(len(target)))
    own = torch.stack([count, *_centred(target), *_centred(error)])
    if group is None:
        ranks = [own]
    else:
        ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(ranks, own, group=group)
    table = torch.stack(ranks)
    total, unexplained = _merge(table[:, 0], table[:, 1:3]), _merge(table[:, 0], table[:, 3:5])
    mean = float((table[:, 0] * table[:, 1]).sum() / table[:, 0].sum().clamp(min=1))
    rounding = float(table[:, 0].sum()) * (SAME * mean) ** 2
    return 1 - unexplained / total if total > rounding else float("nan")


def _centred(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squared distances to it."""
    if not len(x):
        return x.new_tensor(0.0), x.new_tensor(0.0)
    mean = x.mean()
    return mean, (x - mean).square().sum()


def _merge(count_R: Tensor, moments_R2: Tensor) -> float:
    """Sum of squared distances to the common mean, from each rank's own mean and sum."""
    tokens = count_R.sum()
    if not tokens:
        return 0.0
    mean_R, squares_R = moments_R2.unbind(1)
    mean = (count_R * mean_R).sum() / tokens
    return float(squares_R.sum() + (count_R * (mean_R - mean).square()).sum())
