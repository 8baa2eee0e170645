"""The policy that asks a sampler."""

from __future__ import annotations

from collections.abc import Callable

from components.gateway.trajectory import Prompt
from components.outcomes import TurnDrawn, fault_of
from components.records import Sampling
from components.sampler import Sampler
from components.tito import Drawn


class SamplerPolicy:
    """Draws from a sampler, capturing routing if asked to; only the rows that are not held yet are asked for.

    Args:
        version: tells which weights the next answer must be drawn under. None: the sampler's own, the same for every
            answer of a conversation.

    Raises:
        InfraFault: the sampler aborted, drew under other weights, or lost the routing.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        stop_token_ids: tuple[int, ...],
        session_id: str,
        capture: bool,
        version: Callable[[], int] | None = None,
    ) -> None:
        self._sampler = sampler
        self._stop_token_ids = stop_token_ids
        self._session_id = session_id
        self._capture = capture
        self._version = version

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Drawn:
        version = prompt.history.weight_version if self._version is None else self._version()
        drawn = await self._sampler.generate(
            prompt.ids.tolist(),
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            stop_token_ids=self._stop_token_ids,
            routing_start=prompt.history.routing_start(version) if self._capture else None,
            session_id=self._session_id,
        )
        missing = self._capture and drawn.routing is None
        if fault := fault_of(TurnDrawn(drawn.finish_reason, drawn.weight_version, version, missing)):
            raise fault
        return drawn
