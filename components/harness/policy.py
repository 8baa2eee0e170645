"""The policy that follows a script.

Demonstrations and rollouts share one loop, one rendering and one set of tokens: only who answers differs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from components.gateway import ChatTemplate, Prompt
from components.records import Float32, Int32, Routing, Sampling

SCRIPTED_VERSION = -1
"""Weight version of tokens that no weights drew."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
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

    def __init__(self, template: ChatTemplate, script: Script) -> None:
        self._template = template
        self._script = script
        self._turn = 0

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Written:
        text = self._script(self._turn, prompt.messages[-1].content)
        if not isinstance(text, str):
            text = await text
        self._turn += 1
        ids = self._template.answer_ids(text)
        finish = "stop" if len(ids) <= max_new_tokens else "length"
        kept_A = np.asarray(ids[:max_new_tokens], dtype=np.int32)
        return Written(kept_A, np.full(len(kept_A), np.nan, dtype=np.float32), finish)
