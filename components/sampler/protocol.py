"""What every sampler can do, and what a call returns.

Invariant: a `Generation` is whole. Ids, log-probs and routing rows fit each other and the prompt, and all ids were
drawn under one weight version; anything less is an `InfraFault`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from components.records import Float32, Int32, Routing, Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One answer.

    Attributes:
        output_ids: int32[A], the drawn ids, the stop id included.
        logprobs: float32[A], log-probabilities at the sampling temperature, before top-p and top-k.
        routing: [P + A - 1 - routing_start, L, K], uint8 (E <= 256) or uint16; None when it was not asked for.
        routing_start: first position whose row is in `routing`.
        finish_reason: "stop", "length" or "abort".
        weight_version: version of the weights that drew every id.
        cached_tokens: prompt tokens that were not computed again.
    """

    output_ids: Int32
    logprobs: Float32
    routing: Routing | None
    routing_start: int
    finish_reason: str
    weight_version: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a sampler serves."""

    vocab_size: int
    num_layers: int
    num_experts: int
    experts_per_token: int
    context_tokens: int
    weight_version: int
    model_path: str


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where and how a weight group meets (see `weight_group`). `backend` is "gloo" or "nccl"."""

    name: str
    host: str
    port: int
    world_size: int
    backend: str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that will arrive: `dtype` as torch spells it without its prefix."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Sampler(Protocol):
    """Draws tokens. Every method raises `InfraFault(SAMPLER)` when the service fails or misses its deadline."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        routing_start: int | None = None,
        session_id: str,
    ) -> Generation:
        """Continues a prompt.

        Args:
            routing_start: first position whose routing is wanted, at most the prompt's length; None turns capture off.
            session_id: the trajectory, for samplers that keep one on one replica.

        Raises:
            ValueError: ids are out of the vocabulary, prompt and answer exceed the context, or nothing can be drawn as
                `sampling` says.
            InfraFault: SAMPLER, or CAPTURE_MISSING when routing was asked for and is absent or not whole.
        """
        ...

    async def abort_all(self) -> None:
        """Ends every request, those of other clients too."""
        ...

    async def pause(self) -> None:
        """Aborts what runs and holds back what comes, until `resume`."""
        ...

    async def resume(self) -> None:
        """Lets held requests run."""
        ...

    async def flush_cache(self) -> None:
        """Forgets cached prefixes, waiting until nothing runs."""
        ...

    async def update_weights(self, path: str, version: int) -> None:
        """Loads a checkpoint folder; afterwards answers carry `version`."""
        ...

    async def ranks(self) -> int:
        """How many ranks of a weight group this sampler is."""
        ...

    async def join_group(self, group: GroupAddress, first_rank: int) -> None:
        """Takes ranks `first_rank` and following; returns when every member has joined."""
        ...

    async def leave_group(self, name: str) -> None:
        """Leaves a group that it has joined."""
        ...

    async def begin_update(self) -> None:
        """Makes ready for the tensors of a whole model. An earlier update that was not ended is forgotten."""
        ...

    async def receive(self, tensors: Sequence[TensorSpec], group: str, version: int, *, last: bool) -> None:
        """Takes these tensors from the group's rank 0.

        Before the last ones the weights may be torn, and what they would draw cannot pass for a `Generation`.
        """
        ...

    async def end_update(self, version: int) -> None:
        """All tensors have arrived; afterwards answers carry `version`, which is checked."""
        ...

    async def info(self) -> ModelInfo:
        """What is served now."""
        ...

    async def healthy(self) -> bool:
        """Whether the service answers; never raises."""
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...
