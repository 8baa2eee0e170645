"""The Megatron-Core trainer: the Trainer protocol over two networks and a snapshot.

Invariants: actor, critic and behaviour snapshot are three separate sets of weights; the snapshot changes only in
`rotate`, `load_hf` of the actor and `load`; an auxiliary loss and replay never meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from components.config import ModelConfig, OptimizerConfig, TrainerConfig
from components.errors import RecordError
from components.ppo import Tally, policy_loss, token_logprobs, value_loss
from components.records import Float32, Sample
from components.trainer.batching import MicroBatch, gather, micro_batches, scatter
from components.trainer.megatron import checkpoint, specs, weights
from components.trainer.megatron.network import Network, take_aux_loss
from components.trainer.megatron.platform import prepare
from components.trainer.protocol import LearnItem

HEAD = "output_layer."
"""Prefix of the parameters that an actor and a critic do not share."""


class MegatronTrainer:
    """Trains an actor, and a critic beside it when `critic` is given, in this process.

    Args:
        model: the architecture. Weights are fresh, drawn from `seed`, until `load_hf` or `load`.
        config: micro-batches and threads.
        actor: the actor's optimizer; None for a model that is only evaluated.
        critic: the critic's optimizer; None for no critic. A fresh critic is the actor with a head of zeros.
        seed: of the fresh weights.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: TrainerConfig,
        *,
        actor: OptimizerConfig | None = None,
        critic: OptimizerConfig | None = None,
        seed: int = 0,
    ) -> None:
        prepare(config.threads)
        self.model = model
        self.capacity = config.micro_batch_tokens
        self.actor = Network(specs.build_actor(model, seed), model, actor)
        self.critic: Network | None = None
        if critic is not None:
            self.critic = Network(specs.build_critic(model), model, critic)
            self._start_critic(self.critic, self.actor.parameters())
        self.behaviour: dict[str, Tensor] = {}
        self.rotate()

    def sft_step(self, samples: Sequence[Sample], *, lr_share: float, aux_loss_coef: float) -> dict[str, float]:
        """See `Trainer.sft_step`."""
        batches = micro_batches(samples, self.capacity, replay=False)
        tokens = _trainable(batches)

        def loss(logits_MV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tally]:
            total = F.cross_entropy(logits_MV, batch.targets_M, reduction="sum")
            return total / tokens, Tally.of(torch.tensor(len(batch.targets_M)), {"loss": total}, {})

        tallies, norm = self.actor.train(batches, loss, lr_share=lr_share, aux_loss_coef=aux_loss_coef)
        metrics = {**reduce(add, tallies), "grad_norm": norm, "tokens": float(tokens)}
        if aux_loss_coef:
            metrics["aux_loss"] = take_aux_loss() / (len(batches) * self.model.num_hidden_layers)
        return metrics

    def logprobs(
        self, samples: Sequence[Sample], *, weights: Literal["current", "behaviour"], replay: bool, temperature: float
    ) -> list[Float32]:
        """See `Trainer.logprobs`."""
        batches = micro_batches(samples, self.capacity, replay=replay)

        def read(logits_MV: Tensor, batch: MicroBatch) -> Tensor:
            return token_logprobs(logits_MV, batch.targets_M, temperature=temperature)

        if weights == "current":
            return _spread(samples, batches, self.actor.evaluate(batches, read))
        with self.actor.holding(self.behaviour):
            return _spread(samples, batches, self.actor.evaluate(batches, read))

    def values(self, samples: Sequence[Sample]) -> list[Float32]:
        """See `Trainer.values`."""
        batches = micro_batches(samples, self.capacity, replay=False)
        return _spread(samples, batches, self._critic().evaluate(batches, lambda values_M1, _: values_M1[:, 0]))

    def critic_step(self, items: Sequence[LearnItem], *, value_clip: float, scale: float) -> dict[str, float]:
        """See `Trainer.critic_step`."""
        batches = micro_batches([item.sample for item in items], self.capacity, replay=False)
        tokens = _trainable(batches)

        def loss(values_M1: Tensor, batch: MicroBatch) -> tuple[Tensor, Tally]:
            old = gather(batch, [item.old_values_N for item in items])
            returns = gather(batch, [item.returns_N for item in items])
            every = torch.ones_like(old, dtype=torch.bool)
            value, tally = value_loss(values_M1[:, 0], old, returns, every, clip=value_clip, denominator=tokens)
            return scale * value, tally

        tallies, norm = self._critic().train(batches, loss)
        return {**reduce(add, tallies), "grad_norm": norm}

    def actor_step(
        self, items: Sequence[LearnItem], *, clip: float, temperature: float, replay: bool = True
    ) -> dict[str, float]:
        """See `Trainer.actor_step`."""
        batches = micro_batches([item.sample for item in items], self.capacity, replay=replay)
        tokens = _trainable(batches)

        def loss(logits_MV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tally]:
            new_MV = F.log_softmax(logits_MV / temperature, dim=-1)
            new = new_MV.gather(-1, batch.targets_M[:, None])[:, 0]
            old = gather(batch, [item.old_logprobs_N for item in items])
            gain = gather(batch, [item.advantages_N for item in items])
            every = torch.ones_like(old, dtype=torch.bool)
            value, tally = policy_loss(new, old, gain, every, clip=clip, denominator=tokens)
            entropy = -torch.linalg.vecdot(new_MV.detach().exp(), new_MV.detach()).sum()
            return value, Tally.of(tally.count, {**tally.sums, "entropy": entropy}, tally.maxima)

        tallies, norm = self.actor.train(batches, loss)
        return {**reduce(add, tallies), "grad_norm": norm}

    def rotate(self) -> None:
        """See `Trainer.rotate`."""
        self.behaviour = {name: parameter.clone() for name, parameter in self.actor.parameters().items()}

    def load_hf(self, folder: Path, *, what: Literal["actor", "critic_from_actor"] = "actor") -> None:
        """See `Trainer.load_hf`."""
        parameters = weights.read_folder(folder, self.model)
        if what == "actor":
            self.actor.set_parameters(parameters)
            self.rotate()
        else:
            self._start_critic(self._critic(), parameters)

    def save_hf(self, folder: Path) -> None:
        """See `Trainer.save_hf`."""
        weights.write_folder(folder, self.actor.parameters(), self.model)

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        """See `Trainer.stream_hf`."""
        return weights.stream_hugging_face(self.actor.parameters(), self.model)

    def save(self, folder: Path) -> None:
        """See `Trainer.save`."""
        checkpoint.save(folder, self._parts(), self.model)

    def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        checkpoint.load(folder, self._parts(), self.model)

    def _parts(self) -> checkpoint.Parts:
        networks = {"actor": self.actor} | ({"critic": self.critic} if self.critic else {})
        return checkpoint.Parts(networks, self.behaviour)

    def _critic(self) -> Network:
        if self.critic is None:
            raise ValueError("this trainer was built without a critic")
        return self.critic

    @staticmethod
    def _start_critic(critic: Network, actor: dict[str, Tensor]) -> None:
        trunk = {name: value for name, value in actor.items() if not name.startswith(HEAD)}
        head = {n: torch.zeros_like(p) for n, p in critic.parameters().items() if n.startswith(HEAD)}
        assert critic.parameters().keys() == trunk.keys() | head.keys()
        critic.set_parameters({**trunk, **head})


def _trainable(batches: Sequence[MicroBatch]) -> int:
    tokens = sum(len(batch.targets_M) for batch in batches)
    if not tokens:
        raise RecordError("the batch has no trainable token")
    return tokens


def _spread(samples: Sequence[Sample], batches: Sequence[MicroBatch], values: Sequence[Tensor]) -> list[Float32]:
    """Back from micro-batches to one array a sample."""
    arrays = [np.zeros(len(sample.tokens), dtype=np.float32) for sample in samples]
    for batch, values_M in zip(batches, values, strict=True):
        scatter(batch, values_M, arrays)
    return arrays
