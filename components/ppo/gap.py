"""The log-prob gap between two evaluations of the same tokens (paper Eq 15, 24).

Invariant: only sampled tokens count, the token mean is one sum over one sum, and nothing here touches autograd. Called
three times a step: `engine` (same weights, two engines), `policy` (the update), `total`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

EXTREME = math.log(2)
"""A token whose probability changed by more than a factor of two."""


def logprob_gap(
    train_N: ArrayLike | Tensor,
    rollout_N: ArrayLike | Tensor,
    mask_N: ArrayLike | Tensor,
    trial_ids_N: ArrayLike | Tensor | None = None,
) -> dict[str, float]:
    """Series of d = train - rollout over the mask; `tokens` alone when the mask is empty.

    Args:
        train_N: log-probs of the sampled ids by the trainer.
        rollout_N: log-probs of the same ids by what drew them, at the same temperature.
        mask_N: nonzero on sampled tokens.
        trial_ids_N: the trial each token belongs to. Without it each row of a matrix is one trial, and so is a vector.

    Returns:
        `token_mean` of |d|; `trial_mean`, the mean over trials of their own means; `max` of |d|; `k1` = mean of -d and
        `k3` = mean of exp(d) - d - 1, both estimating KL(rollout || train); `frac_gt_ln2`, the share of |d| > ln 2;
        `ess`, the effective share of samples under weights exp(d); and `tokens`.
    """
    train, rollout, mask = _array(train_N), _array(rollout_N), _array(mask_N) != 0
    if not train.shape == rollout.shape == mask.shape:
        raise ValueError(f"log-probs and mask differ in shape: {train.shape}, {rollout.shape}, {mask.shape}")
    if trial_ids_N is None:
        rows = np.arange(train.shape[0] if train.ndim > 1 else 1)
        trial_ids = np.broadcast_to(rows.reshape(-1, *[1] * max(train.ndim - 1, 0)), train.shape)
    else:
        trial_ids = trial_ids_N.numpy(force=True) if isinstance(trial_ids_N, Tensor) else np.asarray(trial_ids_N)
    d = train[mask] - rollout[mask]
    if not len(d):
        return {"tokens": 0.0}
    size = np.abs(d)
    _, trial = np.unique(trial_ids[mask], return_inverse=True)
    per_trial = np.bincount(trial, weights=size) / np.bincount(trial)
    weight = np.exp(d - d.max())  # a common factor cancels in the effective share
    return {
        "tokens": float(len(d)),
        "token_mean": float(size.mean()),
        "trial_mean": float(per_trial.mean()),
        "max": float(size.max()),
        "k1": float(-d.mean()),
        "k3": float((np.expm1(d) - d).mean()),
        "frac_gt_ln2": float((size > EXTREME).mean()),
        "ess": float(weight.sum() ** 2 / (len(d) * np.square(weight).sum())),
    }


def _array(x: ArrayLike | Tensor) -> NDArray[np.float64]:
    return np.asarray(x.detach().double().numpy(force=True) if isinstance(x, Tensor) else x, dtype=np.float64)
