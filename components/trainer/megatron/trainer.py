"""The Megatron-Core trainer: the Trainer protocol over two networks and snapshots of the actor.

Invariants: actor, critic and behaviour snapshots are separate sets of weights; the snapshots change only in `rotate`,
`load_hf` of the actor and `load`; an auxiliary loss and replay never meet.

In a layout of several processes each of them holds one of these, and all make the same calls with the same arguments.
What a call returns holds on the rank that speaks (`Place.speaks`); the others return what they saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from components.config import CriticConfig, LayoutConfig, ModelConfig, OptimizerConfig, TrainerConfig, layout_problems
from components.errors import ConfigError
from components.ppo import Tally
from components.records import Float32, Sample
from components.trainer.batching import MicroBatch, micro_batches, scatter, trainable, trainable_streams
from components.trainer.megatron import checkpoint, losses, specs, weights
from components.trainer.megatron.agreement import together
from components.trainer.megatron.network import Network, take_aux_loss
from components.trainer.megatron.platform import device, prepare
from components.trainer.megatron.vocabulary import logprobs
from components.trainer.protocol import LearnItem, Level, State

HEAD = "output_layer."
"""Prefix of the parameters that an actor and a critic do not share."""


class MegatronTrainer:
    """Trains an actor, and a critic beside it when `critic` is given, in this process, or in it and its like.

    Args:
        model: the architecture. Weights are fresh, drawn from `seed`, until `load_hf` or `load`.
        config: micro-batches, threads, layout and kernels.
        actor: the actor's optimizer; None for a model that is only evaluated.
        critic: the critic's optimizer and loss; None for no critic. A fresh critic is the actor with a head of zeros.
        seed: of the fresh weights, the same in every layout. None where weights are loaded before anything else: until
            then they are not numbers.
        snapshots: how many behaviour snapshots are kept, one a rotation. Each is a set of weights.

    Raises:
        ConfigError: the layout does not fit the model, or this machine lacks a kernel that is asked for.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: TrainerConfig,
        *,
        actor: OptimizerConfig | None = None,
        critic: CriticConfig | None = None,
        seed: int | None = 0,
        snapshots: int = 1,
    ) -> None:
        if problems := layout_problems(config.layout, model):
            raise ConfigError(problems, "trainer")
        specs.check_machine(config, model)
        self.model = model
        self.capacity = config.micro_batch_tokens
        fresh: dict[str, Tensor] = {}
        if seed is not None:
            prepare(LayoutConfig(dp=config.layout.world), config.threads)
            fresh = specs.fresh_weights(model, seed)
        self.place = prepare(config.layout, config.threads)
        self.share = self.place.share(even=config.dispatcher == "allgather" and config.layout.ep > 1)
        self.actor = Network(specs.build_actor(model, config), model, config, self.place, actor)
        self.actor.set_whole(fresh)
        self.critic: Network | None = None
        if critic is not None:
            self.value = losses.ValueObjective(critic)
            head = specs.build_critic(model, config, self.value.width)
            self.critic = Network(head, model, config, self.place, critic.optimizer)
            self._start_critic(self.critic, fresh)
        self.behaviour = [self._snapshot() for _ in range(snapshots)]

    def sft_step(self, samples: Sequence[Sample], *, lr_share: float, aux_loss_coef: float) -> dict[str, float]:
        """See `Trainer.sft_step`."""
        tokens = trainable(samples)
        batches = self._micro_batches(samples, replay=False)

        def loss(logits_MV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tally]:
            total = -logprobs(logits_MV, batch.targets_M, temperature=1.0).sum()
            count = torch.tensor(len(batch.targets_M), device=total.device)
            return total / tokens, Tally.of(count, {"loss": total}, {})

        tallies, norm = self.actor.train(batches, loss, lr_share=lr_share, aux_loss_coef=aux_loss_coef)
        metrics = {**self._total(tallies), "grad_norm": norm, "tokens": float(tokens)}
        if aux_loss_coef:
            layers = self.model.num_hidden_layers
            metrics["aux_loss"] = take_aux_loss(layers) / (len(batches) * layers)
        return metrics

    def logprobs(
        self,
        samples: Sequence[Sample],
        *,
        weights: Literal["current", "behaviour"],
        replay: bool,
        temperature: float,
        age: int = 1,
    ) -> list[Float32]:
        """See `Trainer.logprobs`."""
        if not 1 <= age <= len(self.behaviour):
            raise ValueError(f"a snapshot of age {age} was asked for, {len(self.behaviour)} are kept")
        batches = self._micro_batches(samples, replay=replay)

        def read(logits_MV: Tensor, batch: MicroBatch) -> Tensor:
            return logprobs(logits_MV, batch.targets_M, temperature=temperature)

        if weights == "current":
            return self._spread(samples, batches, self.actor.evaluate(batches, read))
        with self.actor.holding(self.behaviour[age - 1]):
            return self._spread(samples, batches, self.actor.evaluate(batches, read))

    def values(self, samples: Sequence[Sample]) -> list[Float32]:
        """See `Trainer.values`."""
        batches = self._micro_batches(samples, replay=False)
        return self._spread(samples, batches, self._critic().evaluate(batches, self.value.read))

    def critic_step(self, items: Sequence[LearnItem]) -> dict[str, float]:
        """See `Trainer.critic_step`."""
        samples = [item.sample for item in items]
        loss = self.value.loss(items, denominator=trainable(samples))
        tallies, norm = self._critic().train(self._micro_batches(samples, replay=False), loss)
        return {**self._total(tallies), "grad_norm": norm}

    def actor_step(
        self,
        items: Sequence[LearnItem],
        *,
        clip: float,
        temperature: float,
        level: Level = "token",
        replay: bool = True,
    ) -> dict[str, float]:
        """See `Trainer.actor_step`."""
        samples = [item.sample for item in items]
        tokens = trainable(samples)
        denominator = tokens if level == "token" else trainable_streams(samples)
        loss = losses.policy(items, clip=clip, level=level, temperature=temperature, denominator=denominator)
        tallies, norm = self.actor.train(self._micro_batches(samples, replay=replay), loss)
        return {**self._total(tallies), "grad_norm": norm}

    def rotate(self) -> None:
        """See `Trainer.rotate`."""
        self.behaviour = [self._snapshot(), *self.behaviour[:-1]]

    def load_hf(self, folder: Path, *, what: Literal["actor", "critic", "critic_from_actor"] = "actor") -> None:
        """See `Trainer.load_hf`."""
        labels = self.value.width if what == "critic" and self._critic() else None
        with together(f"reading {folder}"):
            parameters = weights.read_folder(folder, self.model, layers=self.actor.layers, labels=labels)
        if what == "actor":
            self.actor.set_whole(parameters)
            self.behaviour = [self._snapshot() for _ in self.behaviour]
        elif what == "critic":
            self._critic().set_whole(parameters)
        else:
            self._start_critic(self._critic(), parameters)

    def save_hf(self, folder: Path, *, what: Literal["actor", "critic"] = "actor") -> None:
        """See `Trainer.save_hf`."""
        whole = (self.actor if what == "actor" else self._critic()).whole()
        labels = self.value.width if what == "critic" else None
        stage = (self.place.pp, self.place.layout.pp)
        weights.write_folder(folder, whole if self.place.writes else {}, self.model, stage=stage, labels=labels)

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        """See `Trainer.stream_hf`."""
        for piece in weights.pieces(self.model):
            yield from self.piece_hf(piece)

    def piece_hf(self, piece: weights.Piece) -> Iterator[tuple[str, Tensor]]:
        """A piece of `stream_hf`, on one rank of its stage. All ranks must call it."""
        whole = self.actor.whole(piece)
        if whole and self.place.writes:
            yield from weights.stream_piece(whole, self.model, piece)

    def state(self) -> State:
        """See `Trainer.state`; of several processes, this one's share."""
        return State(checkpoint.copied(self._parts(), self.model))

    def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        checkpoint.load(folder, self._parts(), self.model)

    def _parts(self) -> checkpoint.Parts:
        networks = {"actor": self.actor} | ({"critic": self.critic} if self.critic else {})
        return checkpoint.Parts(networks, self.behaviour)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: parameter.clone() for name, parameter in self.actor.parameters().items()}

    def _critic(self) -> Network:
        if self.critic is None:
            raise ValueError("this trainer was built without a critic")
        return self.critic

    def _micro_batches(self, samples: Sequence[Sample], *, replay: bool) -> list[MicroBatch]:
        return micro_batches(samples, self.capacity, replay=replay, share=self.share)

    def _total(self, tallies: Sequence[Tally]) -> dict[str, float]:
        """The figures over all data and context ranks; nothing where no loss was computed."""
        if not self.place.last_stage:
            return {}
        tally = reduce(add, tallies)
        group = self._data_ranks()
        return dict(tally.reduce(group) if group.size() > 1 else tally)

    def _spread(
        self, samples: Sequence[Sample], batches: Sequence[MicroBatch], values: Sequence[Tensor]
    ) -> list[Float32]:
        """Back from the micro-batches of all data and context ranks to one array a sample."""
        lengths = [len(sample.tokens) for sample in samples]
        flat = np.zeros(sum(lengths), dtype=np.float32)
        arrays: list[Float32] = np.split(flat, np.cumsum(lengths)[:-1]) if lengths else []
        if not self.place.last_stage:
            return arrays
        for batch, values_M in zip(batches, values, strict=True):
            scatter(batch, values_M, arrays)
        group = self._data_ranks()
        if group.size() > 1:
            # Each value was computed by one rank; elsewhere there are zeros.
            summed = torch.from_numpy(flat).to(device())
            dist.all_reduce(summed, group=group)
            flat[:] = summed.cpu().numpy()
        return arrays

    def _data_ranks(self) -> Any:
        from megatron.core import parallel_state

        return parallel_state.get_data_parallel_group(with_context_parallel=True)

    @staticmethod
    def _start_critic(critic: Network, actor: Mapping[str, Tensor]) -> None:
        critic.set_whole({name: value for name, value in actor.items() if not name.startswith(HEAD)})
        critic.set_parameters({n: torch.zeros_like(p) for n, p in critic.parameters().items() if n.startswith(HEAD)})
