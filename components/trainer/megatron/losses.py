"""The losses of RL, from a model's outputs at the trainable positions of one micro-batch.

Invariant: a loss is divided by what the *global* batch holds (its trainable tokens, or its streams), which the caller
counts; so micro-batches and ranks add up. What is measured comes as one `Tally` a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from components.config import CriticConfig, HlGaussConfig
from components.errors import RecordError
from components.ppo import Bins, Tally, hl_gauss_loss, policy_loss, sequence_policy_loss, stream_means, value_loss
from components.records import Float32
from components.trainer.batching import MicroBatch, gather
from components.trainer.megatron.vocabulary import entropy, logprobs
from components.trainer.protocol import LearnItem, Level

TallyLoss = Callable[[Tensor, MicroBatch], tuple[Tensor, Tally]]


def policy(items: Sequence[LearnItem], *, clip: float, level: Level, temperature: float, denominator: int) -> TallyLoss:
    """Eq 18, or GSPO's; with the entropy at the sampling temperature.

    Args:
        denominator: trainable tokens of the global batch; with `level` "sequence", its streams that have any.
    """

    def loss(logits_MV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tally]:
        new = logprobs(logits_MV, batch.targets_M, temperature=temperature)
        old = gather(batch, [item.old_logprobs_N for item in items])
        gain = gather(batch, [item.advantages_N for item in items])
        every, streams = torch.ones_like(old, dtype=torch.bool), batch.streams_M
        spread = entropy(logits_MV, temperature=temperature)
        if level == "token":
            value, tally = policy_loss(new, old, gain, every, clip=clip, denominator=denominator)
        else:
            value, tally = sequence_policy_loss(new, old, gain, every, streams, clip=clip, denominator=denominator)
            spread = stream_means(spread, every, streams)
        return value, Tally.of(tally.count, {**tally.sums, "entropy": spread.sum()}, tally.maxima)

    return loss


class ValueObjective:
    """How a critic's outputs are read and trained."""

    def __init__(self, config: CriticConfig) -> None:
        self._config = config
        self._bins: Bins | None = None
        if isinstance(config.loss, HlGaussConfig):
            self._bins = Bins(config.loss.low, config.loss.high, config.loss.bins, config.loss.spread)

    @property
    def width(self) -> int:
        """Outputs of the head, a position."""
        return self._bins.count if self._bins else 1

    def read(self, outputs_MK: Tensor, _: MicroBatch) -> Tensor:
        """[M]: the values."""
        return self._bins.values(outputs_MK) if self._bins else outputs_MK[:, 0]

    def loss(self, items: Sequence[LearnItem], *, denominator: int) -> TallyLoss:
        """The value loss times `loss_scale`; the tally has it unscaled.

        Args:
            denominator: trainable tokens of the global batch.
        """
        config = self._config.loss

        def loss(outputs_MK: Tensor, batch: MicroBatch) -> tuple[Tensor, Tally]:
            returns = gather(batch, [_given(item.returns_N, item) for item in items])
            every = torch.ones_like(returns, dtype=torch.bool)
            if isinstance(config, HlGaussConfig):
                assert self._bins is not None
                value, tally = hl_gauss_loss(outputs_MK, returns, every, bins=self._bins, denominator=denominator)
            else:
                old = gather(batch, [_given(item.old_values_N, item) for item in items])
                value, tally = value_loss(
                    outputs_MK[:, 0], old, returns, every, clip=config.clip, denominator=denominator
                )
            return self._config.loss_scale * value, tally

        return loss


def _given(array: Float32 | None, item: LearnItem) -> Float32:
    if array is None:
        raise RecordError(f"item {item.sample.trial_id}/{item.sample.chunk}: a critic needs returns and old values")
    return array
