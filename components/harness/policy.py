"""What draws the next answer of a trial: a sampler, or a script that demonstrates.

Both speak through one protocol, so that demonstrations and rollouts share one loop, one rendering and one set of
tokens. A policy belongs to one trial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from components.harness.chat import Chat
from components.records import Float32, Int32, Routing

SCRIPTED_VERSION = -1
"""Weight version of tokens that no weights drew."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer.

    Attributes:
        ids: int32[A], end token included when the policy said it.
        logprobs: float32[A]; NaN where none was measured (a script has none).
        routing: uint8 or uint16[P+A-1, L, K] of the whole stream up to this answer, or None without capture.
        finish_reason: "stop" or "length".
        weight_version: version of the weights, `SCRIPTED_VERSION` for a script.
    """

    ids: Int32
    logprobs: Float32
    routing: Routing | None
    finish_reason: str
    weight_version: int


class Policy(Protocol):
    """Draws answers. `observation` is the text of the last user turn; a sampler reads only the ids."""

    async def answer(self, prompt_ids: Int32, *, max_new_tokens: int, observation: str) -> Answer: ...


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
        return Answer(kept_A, np.full(len(kept_A), np.nan, dtype=np.float32), None, finish, SCRIPTED_VERSION)
