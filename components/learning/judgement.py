"""What each sampled token is worth: against a critic's values, or against the other trials of its task.

Invariant: chunks of one trial share its reward and, in a group, its one place; only trainable tokens are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.config import CriticConfig
from components.ppo import (
    advantages,
    explained_variance,
    group_advantages,
    group_statistics,
    length_adaptive_lambda,
    place_terminal,
    whiten,
)
from components.records import Float32, Sample


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of a batch, a row a sample, 0 outside the loss region.

    Attributes:
        advantages_BN: what weighs each token's log-prob.
        returns_BN: the critic's targets; None without one.
        metrics: by their names in MLflow.
    """

    advantages_BN: Tensor
    returns_BN: Tensor | None
    metrics: dict[str, float]


def by_critic(
    samples: Sequence[Sample], rewards: Sequence[float], values: Sequence[Float32], config: CriticConfig, *, white: bool
) -> Judgement:
    """Masked GAE on the critic's values from before its update (Eq 16, 28)."""
    mask = loss_mask(samples)
    old_values = pad(values)
    terminal = place_terminal(torch.tensor(rewards, dtype=torch.float32), mask)
    gain, returns = advantages(terminal, old_values, mask, gamma=config.gamma, lam=config.lam)
    metrics = {"critic/explained_variance": explained_variance(returns, old_values, mask)}
    if config.length_adaptive is not None:
        lam_B = length_adaptive_lambda(mask, config.length_adaptive)
        gain, _ = advantages(terminal, old_values, mask, gamma=config.gamma, lam=lam_B)
        metrics["ppo/lambda_mean"] = float(lam_B[mask.any(1)].mean())
    metrics |= _spread(gain, mask)
    return Judgement(whiten(gain, mask) if white else gain, returns, metrics)


def by_group(samples: Sequence[Sample], rewards: Sequence[float], groups: Sequence[str]) -> Judgement:
    """The reward of each trial against its group's (GRPO), the same for all its tokens."""
    trials, trial_rewards, trial_groups = _trials(samples, rewards, groups)
    gain_T = group_advantages(trial_rewards, trial_groups)
    place = {trial: row for row, trial in enumerate(trials)}
    mask = loss_mask(samples)
    gain_B = gain_T[torch.tensor([place[sample.trial_id] for sample in samples])]
    gain = torch.where(mask, gain_B[:, None], 0.0)
    return Judgement(gain, None, _spread(gain, mask))


def group_metrics(samples: Sequence[Sample], rewards: Sequence[float], groups: Sequence[str]) -> dict[str, float]:
    """`group/...`: what the groups of the batch could teach, a trial counting once however many chunks it has."""
    _, trial_rewards, trial_groups = _trials(samples, rewards, groups)
    return {f"group/{name}": value for name, value in group_statistics(trial_rewards, trial_groups).items()}


def loss_mask(samples: Sequence[Sample]) -> Tensor:
    """bool[B, N]."""
    return pad([sample.loss_mask for sample in samples])


def pad(rows: Sequence[NDArray[np.generic]]) -> Tensor:
    """Stacks ragged rows into [B, N], zero (False) on the right."""
    out = np.zeros((len(rows), max(len(row) for row in rows)), dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out)


def _trials(
    samples: Sequence[Sample], rewards: Sequence[float], groups: Sequence[str]
) -> tuple[list[str], Tensor, Tensor]:
    """The batch's trials, each once: their ids, rewards float64[T], and groups int64[T]."""
    found = {sample.trial_id: (reward, group) for sample, reward, group in zip(samples, rewards, groups, strict=True)}
    number = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    trial_rewards = torch.tensor([reward for reward, _ in found.values()], dtype=torch.float64)
    return list(found), trial_rewards, torch.tensor([number[group] for _, group in found.values()])


def _spread(gain: Tensor, mask: Tensor) -> dict[str, float]:
    """Of a single token there is no deviation."""
    chosen = gain[mask]
    spread = {"ppo/adv_std": chosen.std().item()} if len(chosen) > 1 else {}
    return {"ppo/adv_mean": chosen.mean().item()} | spread
