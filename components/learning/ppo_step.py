"""One update of critic and actor from one batch (paper Algorithm 3, sections 4.5 and 5).

Invariant: every number that enters the objective is taken before a weight moves. The behaviour log-probs come from the
snapshot of the version that drew each chunk, under the recorded routing; the values that serve the advantage and
the value clip are the critic's before its update (Eq 28). Only then does the critic move, then the actor. The sampler's
own log-probs are for diagnosis; they enter the objective only through a correction that the configuration applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from components.config import PpoConfig
from components.learning.gaps import corrections, gap_metrics
from components.learning.judgement import Judgement, by_critic, by_group, group_metrics
from components.learning.staleness import behaviour_logprobs
from components.records import Float32, Sample
from components.rollout import TokenFigures
from components.trainer import LearnItem, Level, Trainer


@dataclass(frozen=True, slots=True)
class LearnResult:
    """What one update measured: `metrics` by their names in MLflow, `tokens` of each sample."""

    metrics: dict[str, float]
    tokens: tuple[TokenFigures, ...]


def learn(
    trainer: Trainer,
    samples: Sequence[Sample],
    rewards: Sequence[float],
    config: PpoConfig,
    *,
    groups: Sequence[str],
    version: int,
    temperature: float,
    actor_moves: bool,
) -> LearnResult:
    """Updates the critic where there is one, then the actor, once each.

    Args:
        trainer: holds actor, critic and the behaviour snapshots of the versions that drew `samples`.
        samples: training streams; chunks of one trial stand as streams of their own.
        rewards: one a sample; every chunk of a trial carries the trial's reward.
        config: objective and advantages.
        groups: one a sample: its task. Trials of one task are a group.
        version: of the weights that the update begins with.
        temperature: at which the samples were drawn.
        actor_moves: False during critic-only steps.

    Returns:
        Metrics named as in design section 10, and the figures of every sampled token.
    """
    behaviour = behaviour_logprobs(trainer, samples, version=version, temperature=temperature)
    current = trainer.logprobs(samples, weights="current", replay=True, temperature=temperature)
    weights, metrics = corrections(samples, behaviour, config.corrections)
    metrics |= gap_metrics(samples, behaviour, current)
    if config.group_size > 1:
        metrics |= group_metrics(samples, rewards, groups)
    values: Sequence[Float32] | None = None
    if config.critic is None:
        judged = by_group(samples, rewards, groups)
    else:
        values = trainer.values(samples)
        judged = by_critic(samples, rewards, values, config.critic, white=config.whiten_advantages)
    metrics |= judged.metrics
    metrics["ppo/tokens"] = float(sum(sample.loss_mask.sum() for sample in samples))
    metrics["ppo/chunks_without_tokens"] = float(sum(not sample.loss_mask.any() for sample in samples))

    items = _items(samples, behaviour, values, weights, judged)
    if config.critic is not None:
        metrics |= {f"critic/{name}": value for name, value in trainer.critic_step(items).items()}
    trainer.rotate()
    if actor_moves:
        level: Level = "sequence" if config.algorithm == "gspo" else "token"
        actor = trainer.actor_step(items, clip=config.clip, level=level, temperature=temperature)
        metrics |= {f"ppo/{name}": value for name, value in actor.items()}
    return LearnResult(metrics, tuple(map(_figures, items, current)))


def _items(
    samples: Sequence[Sample],
    behaviour: Sequence[Float32],
    values: Sequence[Float32] | None,
    weights: Sequence[Float32],
    judged: Judgement,
) -> list[LearnItem]:
    """Sliced back to the samples' own lengths. A weight w >= 0 leaves the clip as it is: w min(r A, r' A) is the same
    with w A in place of A, so it is multiplied into the advantage."""
    items = []
    for row, (sample, old_logprobs, weight) in enumerate(zip(samples, behaviour, weights, strict=True)):
        n = len(sample.tokens)
        returns = judged.returns_BN
        item = LearnItem(
            sample=sample,
            advantages_N=judged.advantages_BN[row, :n].numpy() * weight,
            old_logprobs_N=old_logprobs,
            returns_N=None if returns is None else returns[row, :n].numpy(),
            old_values_N=None if values is None else values[row],
        )
        items.append(item)
    return items


def _figures(item: LearnItem, current: Float32) -> TokenFigures:
    mask, values = item.sample.loss_mask, item.old_values_N
    return TokenFigures(
        behaviour=item.old_logprobs_N[mask],
        current=current[mask],
        advantages=item.advantages_N[mask],
        values=None if values is None else values[mask],
    )
