"""What draws the next answer of a trial: a sampler, or a script that demonstrates.

Both speak through one protocol, so that demonstrations and rollouts share one loop, one rendering and one set of
tokens. A policy belongs to one trial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from components.errors import FaultCause, InfraFault
from components.harness.chat import Chat
from components.records import Float32, Int32, Routing, Sampling
from components.sampler import Sampler
from components.tito.history import Drawn

SCRIPTED_VERSION = -1
"""Weight version of tokens that no weights drew."""


class Policy(Protocol):
    """Draws answers. `observation` is the text of the last user turn; a sampler reads only the ids.

    The routing of an answer may start where the rows already returned in this trial end (`routing_start`).
    """

    async def answer(self, prompt_ids: Int32, *, max_new_tokens: int, observation: str) -> Drawn: ...


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer that was written: no log-prob was measured (NaN), no expert was chosen."""

    output_ids: Int32
    logprobs: Float32
    finish_reason: str
    routing: Routing | None = None
    routing_start: int = 0
    weight_version: int = SCRIPTED_VERSION


Script = Callable[[int, str], Awaitable[str] | str]
"""(turn from 0, last observation) -> the text of the answer."""


class ScriptedPolicy:
    """Answers with the text of a script, rendered to ids once, as if it had been sampled."""

    def __init__(self, chat: Chat, script: Script) -> None:
        self._chat = chat
        self._script = script
        self._turn = 0

    async def answer(self, prompt_ids: Int32, *, max_new_tokens: int, observation: str) -> Answer:
        text = self._script(self._turn, observation)
        if not isinstance(text, str):
            text = await text
        self._turn += 1
        ids = self._chat.answer_ids(text)
        finish = "stop" if len(ids) <= max_new_tokens else "length"
        kept_A = np.asarray(ids[:max_new_tokens], dtype=np.int32)
        return Answer(kept_A, np.full(len(kept_A), np.nan, dtype=np.float32), finish)


class SamplerPolicy:
    """Draws from a sampler, capturing routing if asked to; only the rows that were not returned yet are asked for.

    Raises:
        InfraFault: the sampler aborted, changed its weights within the trial, or lost the routing.
    """

    def __init__(self, sampler: Sampler, chat: Chat, sampling: Sampling, *, session_id: str, capture: bool) -> None:
        self._sampler = sampler
        self._sampling = sampling
        self._stop_token_ids = (chat.end_id,)
        self._session_id = session_id
        self._capture = capture
        self._rows = 0
        self._version: int | None = None

    async def answer(self, prompt_ids: Int32, *, max_new_tokens: int, observation: str) -> Drawn:
        drawn = await self._sampler.generate(
            prompt_ids.tolist(),
            sampling=self._sampling,
            max_new_tokens=max_new_tokens,
            stop_token_ids=self._stop_token_ids,
            routing_start=self._rows if self._capture else None,
            session_id=self._session_id,
        )
        if drawn.finish_reason not in ("stop", "length"):
            raise InfraFault(FaultCause.SAMPLER, f"the sampler ended a turn as {drawn.finish_reason!r}")
        if self._version not in (None, drawn.weight_version):
            raise InfraFault(
                FaultCause.SAMPLER, f"weights {self._version} became {drawn.weight_version} within a trial"
            )
        if self._capture and drawn.routing is None:
            raise InfraFault(FaultCause.CAPTURE_MISSING, f"the turn of {len(prompt_ids)} prompt ids has no routing")
        self._version = drawn.weight_version
        self._rows = len(prompt_ids) + len(drawn.output_ids) - 1
        return drawn
