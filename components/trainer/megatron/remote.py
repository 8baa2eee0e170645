"""A trainer of several processes behind the Trainer protocol.

Invariant: every method is one call on every rank, with the same arguments, so the ranks stay in step; nothing is kept
on this side.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from components.config import CriticConfig, ModelConfig, OptimizerConfig, TrainerConfig, layout_problems
from components.errors import ConfigError
from components.records import Float32, Sample
from components.trainer.megatron.trainer import MegatronTrainer
from components.trainer.megatron.weights import Piece, pieces
from components.trainer.protocol import LearnItem, Level, State, Trainer
from components.trainer.ranks import Ranks

TRAINER = "trainer"
"""Key of a rank's stage."""


@contextlib.contextmanager
def open_trainer(
    model: ModelConfig,
    config: TrainerConfig,
    *,
    actor: OptimizerConfig | None = None,
    critic: CriticConfig | None = None,
    seed: int | None = 0,
    snapshots: int = 1,
    logs: Path | None = None,
) -> Iterator[Trainer]:
    """A trainer in the layout that `config` says, for the time of the block: in this process, or in several of its own.

    Args:
        model, config, actor, critic, seed, snapshots: see `MegatronTrainer`.
        logs: folder of the processes' logs.

    Raises:
        ConfigError: the layout does not fit the model, or this machine lacks a kernel that is asked for.
        InfraFault: a process died, now or in any call of the trainer; all of them have ended.
    """
    if problems := layout_problems(config.layout, model):
        raise ConfigError(problems, "trainer")
    if config.layout.world == 1:
        yield MegatronTrainer(model, config, actor=actor, critic=critic, seed=seed, snapshots=snapshots)
        return
    with Ranks(config.layout.world, threads=config.threads, timeout_s=config.collective_timeout_s, logs=logs) as ranks:
        yield RemoteTrainer(ranks, model, config, actor=actor, critic=critic, seed=seed, snapshots=snapshots)


class RemoteTrainer:
    """A `MegatronTrainer` on each of `ranks`. Arguments as there."""

    def __init__(
        self,
        ranks: Ranks,
        model: ModelConfig,
        config: TrainerConfig,
        *,
        actor: OptimizerConfig | None = None,
        critic: CriticConfig | None = None,
        seed: int | None = 0,
        snapshots: int = 1,
    ) -> None:
        self._ranks = ranks
        self._model = model
        ranks.call(_build, model, config, actor=actor, critic=critic, seed=seed, snapshots=snapshots)

    def sft_step(self, samples: Sequence[Sample], *, lr_share: float, aux_loss_coef: float) -> dict[str, float]:
        """See `Trainer.sft_step`."""
        return dict(self._call("sft_step", list(samples), lr_share=lr_share, aux_loss_coef=aux_loss_coef))

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
        settings = {"weights": weights, "replay": replay, "temperature": temperature, "age": age}
        return list(self._call("logprobs", list(samples), **settings))

    def values(self, samples: Sequence[Sample]) -> list[Float32]:
        """See `Trainer.values`."""
        return list(self._call("values", list(samples)))

    def critic_step(self, items: Sequence[LearnItem]) -> dict[str, float]:
        """See `Trainer.critic_step`."""
        return dict(self._call("critic_step", list(items)))

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
        settings = {"clip": clip, "temperature": temperature, "level": level, "replay": replay}
        return dict(self._call("actor_step", list(items), **settings))

    def rotate(self) -> None:
        """See `Trainer.rotate`."""
        self._call("rotate")

    def load_hf(self, folder: Path, *, what: Literal["actor", "critic", "critic_from_actor"] = "actor") -> None:
        """See `Trainer.load_hf`."""
        self._call("load_hf", folder, what=what)

    def save_hf(self, folder: Path, *, what: Literal["actor", "critic"] = "actor") -> None:
        """See `Trainer.save_hf`."""
        self._call("save_hf", folder, what=what)

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        """See `Trainer.stream_hf`."""
        for piece in pieces(self._model):
            yield from self._received(piece)

    def state(self) -> State:
        """See `Trainer.state`."""
        return State({name: data for share in self._ranks.call(_state) for name, data in share.items()})

    def load(self, folder: Path) -> None:
        """See `Trainer.load`."""
        self._call("load", folder)

    def _received(self, piece: Piece) -> Iterator[tuple[str, Tensor]]:
        """A message is freed as a whole: tensors are copied out of it, so that none keeps the others, but one alone."""
        for part in self._ranks.call(_piece, piece):
            for name, array in part.items():
                yield name, _published(array if len(piece.names) == 1 else array.copy())

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the rank that speaks returned."""
        return next(value for speaks, value in self._ranks.call(_run, method, *args, **kwargs) if speaks)


def _published(array: NDArray[Any]) -> Tensor:
    """The same as a tensor, that nobody writes to: it may be of a message."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def _build(stage: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    stage.pop(TRAINER, None)  # two would not fit beside each other
    stage[TRAINER] = MegatronTrainer(*args, **kwargs)


def _run(stage: dict[str, Any], method: str, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    """Whether this rank speaks, and what it says."""
    trainer: MegatronTrainer = stage[TRAINER]
    value = getattr(trainer, method)(*args, **kwargs)
    return (True, value) if trainer.place.speaks else (False, None)


def _state(stage: dict[str, Any]) -> dict[str, NDArray[Any]]:
    trainer: MegatronTrainer = stage[TRAINER]
    return dict(trainer.state().files)


def _piece(stage: dict[str, Any], piece: Piece) -> dict[str, NDArray[Any]]:
    trainer: MegatronTrainer = stage[TRAINER]
    return {name: tensor.cpu().numpy() for name, tensor in trainer.piece_hf(piece)}
