"""The policy that asks a teacher: a model that takes and gives text, behind an OpenAI-compatible endpoint.

Invariants: the teacher is shown the history that a policy of ours would be given, message by message; its text becomes
ids by our tokenizer, once, with whatever could be a control token disarmed; while it is asked the trial's clock
stands. An endpoint that gives no answer is a fault of the infrastructure, whatever it gave instead.
"""

from __future__ import annotations

import asyncio

import numpy as np

from components.curation.endpoint import Answer, Endpoint, Unanswered
from components.errors import FaultCause, InfraFault, LongshellError
from components.gateway import ChatTemplate, Prompt
from components.harness import RunningTime, Written
from components.records import Sampling
from components.rejection.account import Account
from components.rejection.rendering import history

CUT = "length"
"""How an endpoint says that an answer is not whole."""
WITHHELD = "content_filter"


class BudgetSpent(LongshellError, RuntimeError):
    """The teacher may not be asked again: what has begun cannot be finished."""


class Teacher:
    """Plays one trial. See `components.gateway.Policy`.

    Raises:
        InfraFault: the endpoint did not answer.
        BudgetSpent: it may not be asked.
        ServiceError: it has not answered anybody for long.
        ConfigError: it refuses every request, or tells no token counts where there is a budget.
    """

    def __init__(self, endpoint: Endpoint, account: Account, template: ChatTemplate, time: RunningTime) -> None:
        self._endpoint = endpoint
        self._account = account
        self._template = template
        self._time = time

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Written:
        said = await self._ask(prompt)
        text = said.text.encode("utf-8", "replace").decode("utf-8")  # JSON can spell what is no text
        ids = await asyncio.to_thread(self._template.answer_ids, text)
        whole = said.finish != CUT and len(ids) <= max_new_tokens
        if not whole:
            ids = self._cut(ids[:-1], max_new_tokens)
        ids_A = np.asarray(ids, dtype=np.int32)
        return Written(ids_A, np.full(len(ids), np.nan, dtype=np.float32), "stop" if whole else "length")

    async def _ask(self, prompt: Prompt) -> Answer:
        if self._account.empty:
            raise BudgetSpent("the teacher's budget is spent")
        plain = self._template.disarm
        messages = [(each.role, plain(each.content)) for each in history(prompt.after, prompt.messages)]
        try:
            with self._time.standing_still():
                said = await self._endpoint.converse(messages)
        except Unanswered as error:
            raise InfraFault(FaultCause.SAMPLER, f"teacher: {error}") from error
        self._account.count(said)
        if said.finish == WITHHELD:
            raise InfraFault(FaultCause.SAMPLER, "teacher: its answer was withheld by a content filter")
        return said

    def _cut(self, ids: list[int], most: int) -> list[int]:
        """The beginning of an answer, without its end and without part of a character."""
        kept = ids[:most]
        while kept and self._template.tokenizer.decode(kept).endswith("\N{REPLACEMENT CHARACTER}"):
            kept.pop()
        return kept
