"""What every trainer offers, whatever trains underneath.

Invariants: arrays are per sample and aligned with its tokens, 0 where nothing was sampled. One call of a `*_step` is
one optimizer step over the global batch, however it was cut into micro-batches. The critic's values and its step route
freely; the actor's log-probs and step replay the recorded routing when asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from components.errors import RecordError
from components.records import Float32, Sample
from components.trainer.folder import atomic_folder

Level = Literal["token", "sequence"]
"""What has a ratio of its own in the policy loss."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnItem:
    """A sample with what PPO needs to learn from it; arrays are float32[N], read only where the mask is set.

    Attributes:
        sample: the stream.
        advantages_N: advantage of each sampled token.
        old_logprobs_N: log-probs under the behaviour snapshot, by this trainer.
        returns_N: return of each sampled token, the critic's target; None without a critic.
        old_values_N: the critic's values before this step's update; None without a critic.

    Raises:
        RecordError: an array does not fit the tokens.
    """

    sample: Sample
    advantages_N: Float32
    old_logprobs_N: Float32
    returns_N: Float32 | None = None
    old_values_N: Float32 | None = None

    def __post_init__(self) -> None:
        name = f"item {self.sample.trial_id}/{self.sample.chunk}"
        given = (self.advantages_N, self.old_logprobs_N, self.returns_N, self.old_values_N)
        arrays = [array for array in given if array is not None]
        lengths = [len(array) for array in arrays]
        if any(length != len(self.sample.tokens) for length in lengths):
            raise RecordError(f"{name}: arrays of {lengths} for {len(self.sample.tokens)} tokens")
        if not all(np.isfinite(array[self.sample.loss_mask]).all() for array in arrays):
            raise RecordError(f"{name}: a figure of a trainable token is not finite")


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A copy, in host memory, of everything that a bit-exact continuation needs. What the trainer does next leaves it
    as it is, so another thread may write it meanwhile.

    Attributes:
        files: uint8[bytes] of each file, by name.
    """

    files: Mapping[str, NDArray[np.uint8]]

    def write(self, folder: Path) -> None:
        """Writes the folder that `Trainer.load` reads, atomically."""
        with atomic_folder(folder) as fresh:
            for name, data in self.files.items():
                (fresh / name).write_bytes(data.data)


class Trainer(Protocol):
    """An actor, and a critic when it was built with one. Metric names carry no prefix; the caller adds it."""

    def sft_step(self, samples: Sequence[Sample], *, lr_share: float, aux_loss_coef: float) -> dict[str, float]:
        """One step on the token-mean cross entropy: `loss`, `grad_norm`, `tokens`, and `aux_loss` when it is on."""
        ...

    def logprobs(
        self,
        samples: Sequence[Sample],
        *,
        weights: Literal["current", "behaviour"],
        replay: bool,
        temperature: float,
        age: int = 1,
    ) -> list[Float32]:
        """float32[N] a sample: log-prob of each sampled token, now or under the behaviour snapshot of `age` rotations.

        Raises:
            ValueError: no snapshot is kept for so long.
        """
        ...

    def values(self, samples: Sequence[Sample]) -> list[Float32]:
        """float32[N] a sample: the critic's value before each sampled token."""
        ...

    def critic_step(self, items: Sequence[LearnItem]) -> dict[str, float]:
        """One step on the value loss that the critic was built for (Eq 17, or HL-Gauss)."""
        ...

    def actor_step(
        self,
        items: Sequence[LearnItem],
        *,
        clip: float,
        temperature: float,
        level: Level = "token",
        replay: bool = True,
    ) -> dict[str, float]:
        """One step on the clipped policy loss: a ratio a `token` (Eq 18), or one a `sequence` (GSPO)."""
        ...

    def rotate(self) -> None:
        """The newest behaviour snapshot, of age 1, becomes the current actor; the others age, and the oldest goes."""
        ...

    def load_hf(self, folder: Path, *, what: Literal["actor", "critic", "critic_from_actor"] = "actor") -> None:
        """Takes weights, and nothing else, from a Hugging Face folder.

        `actor` and `critic` take what `save_hf` wrote of the same; `critic_from_actor` takes an actor's trunk and gives
        the critic a head of zeros.
        """
        ...

    def save_hf(self, folder: Path, *, what: Literal["actor", "critic"] = "actor") -> None:
        """Writes the weights of a model as a Hugging Face folder, atomically."""
        ...

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that `save_hf` writes, by the same names, one at a time: no second set of weights is held."""
        ...

    def state(self) -> State:
        """Everything a bit-exact continuation needs, copied."""
        ...

    def load(self, folder: Path) -> None:
        """Continues from what `State.write` wrote, in this layout or in another."""
        ...
