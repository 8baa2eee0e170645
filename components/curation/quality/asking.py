"""Asks a model about one task and remembers what it said, so that nothing is paid for twice.

Invariants: an answer is in the store before it is read; it is used again by whoever asks the same model the same thing
about the same version of a task, bad answers included, in the order in which they came. Killed at any line, what is
asked again is at most what was under way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from components.artifacts import ArtifactStore
from components.config import EndpointConfig
from components.curation.endpoint import Answer, Endpoint, Unanswered
from components.curation.quality.answer import BadAnswer
from components.errors import ConfigError

T = TypeVar("T")
CUT = ("length", "content_filter")
"""Ends of an answer that is not whole."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one version of one task."""

    digest: str
    system: str
    user: str
    schema: Mapping[str, Any]
    name: str

    def key(self, config: EndpointConfig) -> str:
        """Where its answers are kept: by the task's digest, and by everything that the model is told."""
        drawn = [config.model, config.temperature, config.max_tokens, config.structured]
        asked = json.dumps([*drawn, self.system, self.user, self.schema, self.name], sort_keys=True)
        return f"answers/{self.name}/{self.digest}/{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"


@dataclass(slots=True)
class Purse:
    """What a stage spends: of every answer that it uses, whether it was paid for now or by an attempt before.

    Attributes:
        before: US dollars that earlier stages spent of the same budget.
        spent: US dollars of answers whose cost is known.
        unpriced: answers whose cost is not known.
        bad: answers that could not be read.
        paid: answers that were asked for now.
    """

    config: EndpointConfig
    before: float = 0.0
    spent: float = 0.0
    answers: int = 0
    unpriced: int = 0
    bad: int = 0
    paid: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def empty(self) -> bool:
        """Whether the budget allows no further request."""
        return self.config.budget is not None and self.before + self.spent >= self.config.budget

    def count(self, answer: Answer) -> None:
        """Adds an answer.

        Raises:
            ConfigError: there is a budget, and the endpoint does not tell how many tokens it took.
        """
        cost = answer.cost(self.config)
        if cost is None and self.config.budget is not None:
            raise ConfigError(
                [f"budget: {self.config.base_url} tells no token counts, so no budget can be held; set it to null"],
                "endpoint",
            )
        self.answers += 1
        self.unpriced += cost is None
        self.spent += cost or 0.0
        self.prompt_tokens += answer.prompt_tokens or 0
        self.completion_tokens += answer.completion_tokens or 0

    def to_json(self) -> dict[str, Any]:
        """The figures of a result. Without a price for every answer there is no cost."""
        return {
            "answers": self.answers,
            "bad_answers": self.bad,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "unpriced_answers": self.unpriced,
            "cost_usd": None if self.unpriced else round(self.spent, 6),
        }


class Conversation:
    """The answers to one question, one after another: first those that the store has."""

    def __init__(self, question: Question, endpoint: Endpoint, store: ArtifactStore, purse: Purse) -> None:
        self._question, self._endpoint, self._store, self._purse = question, endpoint, store, purse
        self._key = question.key(endpoint.config)
        known = store.get_json(self._key)["answers"] if store.exists(self._key) else []
        self._answers = [Answer(**each) for each in known]
        self._used = 0

    async def next(self) -> Answer:
        """The next answer.

        Raises:
            Unanswered: the endpoint gave none, or the budget is spent.
            ServiceError, ConfigError: as `Endpoint.ask`.
        """
        if self._used == len(self._answers):
            if self._purse.empty:
                raise Unanswered(f"the budget of ${self._purse.config.budget:g} is spent")
            question = self._question
            answer = await self._endpoint.ask(question.system, question.user, question.schema, question.name)
            self._answers.append(answer)
            self._store.put_json(
                self._key,
                {"model": self._endpoint.config.model, "answers": [each.to_json() for each in self._answers]},
            )
            self._purse.paid += 1
        answer = self._answers[self._used]
        self._used += 1
        self._purse.count(answer)
        return answer

    async def usable(self, read: Callable[[str], T], attempts: int) -> T:
        """The first of the next `attempts` answers that `read` can read.

        Raises:
            BadAnswer: none; it says what was wrong with each.
            Unanswered, ServiceError, ConfigError: as `next`.
        """
        problems: list[str] = []
        for _ in range(attempts):
            answer = await self.next()
            try:
                return read(_whole(answer))
            except BadAnswer as problem:
                self._purse.bad += 1
                problems.append(str(problem))
        raise BadAnswer(_told(problems))


def _whole(answer: Answer) -> str:
    if answer.finish in CUT:
        raise BadAnswer(f"it was cut off ({answer.finish})")
    if not answer.text.strip():
        raise BadAnswer("it is empty")
    return answer.text


def _told(problems: Sequence[str]) -> str:
    each = "; ".join(f"{number}: {problem}" for number, problem in enumerate(problems, 1))
    return f"no usable answer in {len(problems)} ({each})"
