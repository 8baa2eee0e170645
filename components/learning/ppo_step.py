"""One update of critic and actor from one batch (paper Algorithm 3, sections 4.5 and 5).

Invariant: every number that enters the objective is taken before a weight moves. The behaviour log-probs come from the
snapshot of the version that generated the batch, under the recorded routing; the values that serve the advantage and
the value clip are the critic's before its update (Eq 28). Only then does the critic move, then the actor. The sampler's
own log-probs are for diagnosis and never enter the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from components.config import PpoConfig
from components.ppo import advantages, explained_variance, logprob_gap, place_terminal, whiten
from components.records import Float32, Sample
from components.trainer import LearnItem, Trainer

GAP_TERMS = ("token_mean", "trial_mean", "max")


@dataclass(frozen=True, slots=True)
class LearnResult:
    """Metrics of one update, by their names in MLflow."""

    metrics: dict[str, float]


def learn(
    trainer: Trainer,
    samples: Sequence[Sample],
    rewards: Sequence[float],
    config: PpoConfig,
    *,
    temperature: float,
    actor_moves: bool,
) -> LearnResult:
    """Updates the critic, then the actor, once each.

    Args:
        trainer: holds actor, critic and the behaviour snapshot of the version that generated `samples`.
        samples: training streams; chunks of one trial stand as streams of their own.
        rewards: one a sample; every chunk of a trial carries the trial's reward.
        config: objective and advantages.
        temperature: at which the samples were drawn.
        actor_moves: False during critic-only steps.

    Returns:
        Metrics named as in design section 10.
    """
    behaviour = trainer.logprobs(samples, weights="behaviour", replay=True, temperature=temperature)
    current = trainer.logprobs(samples, weights="current", replay=True, temperature=temperature)
    values = trainer.values(samples)
    metrics = _gaps(samples, behaviour, current)
    items, estimates = _items(samples, rewards, behaviour, values, config)
    metrics.update(estimates)
    critic = trainer.critic_step(items, value_clip=config.value_clip, scale=config.value_scale)
    metrics.update({f"critic/{name}": value for name, value in critic.items()})
    trainer.rotate()
    if actor_moves:
        actor = trainer.actor_step(items, clip=config.clip, temperature=temperature)
        metrics.update({f"ppo/{name}": value for name, value in actor.items()})
    return LearnResult(metrics)


def _items(
    samples: Sequence[Sample],
    rewards: Sequence[float],
    behaviour: Sequence[Float32],
    values: Sequence[Float32],
    config: PpoConfig,
) -> tuple[list[LearnItem], dict[str, float]]:
    """Advantages and returns over trainable tokens, sliced back to the samples' own lengths."""
    mask = _pad([sample.loss_mask for sample in samples])
    old_values = _pad(values)
    terminal = place_terminal(torch.tensor(rewards, dtype=torch.float32), mask)
    advantage, returns = advantages(terminal, old_values, mask, gamma=config.gamma, lam=config.lam)
    trainable = advantage[mask]
    metrics = {
        "critic/explained_variance": explained_variance(returns, old_values, mask),
        "ppo/adv_mean": trainable.mean().item(),
        "ppo/adv_std": trainable.std().item(),
        "ppo/tokens": float(mask.sum()),
        "ppo/chunks_without_tokens": float((~mask.any(1)).sum()),
    }
    if config.whiten_advantages:
        advantage = whiten(advantage, mask)
    items = []
    for row, (sample, old_logprobs, old) in enumerate(zip(samples, behaviour, values, strict=True)):
        n = len(sample.tokens)
        item = LearnItem(
            sample=sample,
            advantages_N=advantage[row, :n].numpy(),
            returns_N=returns[row, :n].numpy(),
            old_logprobs_N=old_logprobs,
            old_values_N=old,
        )
        items.append(item)
    return items, metrics


def _gaps(samples: Sequence[Sample], behaviour: Sequence[Float32], current: Sequence[Float32]) -> dict[str, float]:
    """The three log-prob gaps of design section 4, over the loss region (Eq 15, 24)."""
    mask = torch.from_numpy(np.concatenate([sample.loss_mask for sample in samples]))
    trial = torch.from_numpy(np.concatenate([np.full(len(s.tokens), i) for i, s in enumerate(samples)]))
    sampler = torch.from_numpy(np.concatenate([sample.logprobs for sample in samples]))
    before = torch.from_numpy(np.concatenate(behaviour))
    now = torch.from_numpy(np.concatenate(current))
    series = {
        "engine": logprob_gap(before, sampler, mask, trial_ids_N=trial),
        "policy": logprob_gap(now, before, mask, trial_ids_N=trial),
        "total": logprob_gap(now, sampler, mask, trial_ids_N=trial),
    }
    metrics = {f"gap/{name}_{term}": gap[term] for name, gap in series.items() for term in GAP_TERMS}
    total = series["total"]
    metrics.update({f"gap/{term}": total[term] for term in ("k3", "frac_gt_ln2", "ess")})
    return metrics


def _pad(rows: Sequence[np.ndarray]) -> torch.Tensor:
    """Stacks ragged rows into [B, N], zero (False) on the right."""
    width = max(len(row) for row in rows)
    out = np.zeros((len(rows), width), dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out)
