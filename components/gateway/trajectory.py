"""The recorder: every answer of one trial as a turn of token ids, however its agent speaks.

Invariants:
- the source of truth is ids. A conversation that goes on from a recorded answer has the ids of that answer in its next
  prompt, exactly as they were drawn and under exactly the ids they were drawn under: re-encoded context is 0;
- an answer is recorded whole or not at all: ids, log-probs, routing and version fit, or nothing of it remains;
- what was recorded never changes. A conversation that does not go on from a recorded answer (compaction, an edited
  message) starts anew, and `components.tito.stitch` opens a chunk there.

Recorded answers form a tree, since agents branch: they retry, and they run sub-agents. `turns` lists it branch by
branch, which is the order in which the stitcher needs the fewest chunks; a node that branches share is in it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol

from components.errors import FaultCause, InfraFault, RecordError
from components.gateway.message import Message, read_answer
from components.gateway.template import ChatTemplate
from components.records import Int32, Sample, Sampling, Turn
from components.tito import Drawn, Stitcher, TokenHistory

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What an answer is drawn for.

    Attributes:
        history: the ids, and which routing rows are held of them.
        messages: the new messages, those since `after`.
        tools: the functions that were offered, in OpenAI's form.
        after: the recorded answer that the conversation goes on from; None when it starts here.
    """

    history: TokenHistory
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    after: Answer | None = None

    @property
    def ids(self) -> Int32:
        return self.history.prompt_ids

    def __len__(self) -> int:
        return len(self.history)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A recorded answer: one node of the tree.

    Attributes:
        turn: what was drawn, and for which ids.
        message: the same as its client is told.
        text: what the drawn ids spell, without the end token.
        history: all ids up to and with the answer.
        prompt: what it was drawn for.
        followers: answers that go on from this one, in the order in which they were recorded.
    """

    turn: Turn
    message: Message
    text: str
    history: TokenHistory
    prompt: Prompt
    followers: list[Answer] = field(default_factory=list)


class Policy(Protocol):
    """Draws answers. Their routing may start where the rows that the prompt's history holds end."""

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Drawn: ...


class Trajectory:
    """The conversations of one trial. Use within one event loop; answers may be drawn concurrently.

    Args:
        policy: draws the answers.
        sampling: of every answer whose request names none.
        reasoning: whether answers are read as reasoning followed by content (`read_answer`).
    """

    def __init__(
        self,
        policy: Policy,
        template: ChatTemplate,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        reasoning: bool = False,
    ) -> None:
        self.template = template
        self.sampling = sampling
        self._policy = policy
        self._reasoning = reasoning
        self._roots: list[Answer] = []
        self._stitcher: Stitcher | None = None
        self._stitched: list[Answer] = []

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Every recorded answer, in the order of `turns`."""
        return tuple(self._listed())

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every recorded turn, branch by branch; the first of a branch says that it `opens` one."""
        return self._turns(self._listed())

    def samples(self, trial_id: str) -> list[Sample]:
        """The training streams of `turns`, as `components.tito.stitch` makes them. `trial_id` is always the same one.

        Asked again, it stitches what was recorded since. Only where that lies before what was stitched already (another
        branch of an earlier answer, or one that was withdrawn) does it begin anew.
        """
        answers = self._listed()
        stitcher, known = self._stitcher, len(self._stitched)
        self._stitcher = None  # until every turn is in it: one that is refused leaves nothing half done
        if stitcher is None or any(a is not b for a, b in zip_longest(self._stitched, answers[:known])):
            stitcher, known = Stitcher(self.template.tokenizer, trial_id=trial_id), 0
        for turn in self._turns(answers)[known:]:
            stitcher.append(turn)
        self._stitcher, self._stitched = stitcher, answers
        return stitcher.samples()

    def locate(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[Answer | None, Sequence[Message]]:
        """The deepest recorded answer that a conversation goes on from, and what is new after it.

        It goes on from an answer whose prompt's messages it holds, then the answer's echo (`Message.echoes`). Of two
        answers that were told alike, the later one is taken.
        """
        best: Answer | None = None
        depth = 0
        waiting = [(answer, 0) for answer in self._roots]
        while waiting:
            answer, start = waiting.pop()
            end = start + len(answer.prompt.messages)
            if end >= len(messages) or not messages[end].echoes(answer.message):
                continue
            if tuple(messages[start:end]) != answer.prompt.messages or list(answer.prompt.tools) != list(tools):
                continue
            if end >= depth:
                best, depth = answer, end + 1
            waiting.extend((follower, end + 1) for follower in answer.followers)
        return best, messages[depth:]

    def follow(self, answer: Answer | None, messages: Sequence[Message], tools: Tools = ()) -> Prompt:
        """The prompt of new messages after a recorded answer, or of a conversation of its own.

        Raises:
            RecordError: the chat template refuses the messages.
        """
        return self.prompt(self.encode(answer, messages, tools), answer, messages, tools)

    def encode(self, answer: Answer | None, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """The ids that `follow` appends. Reads nothing that changes: what is long is encoded in a thread.

        Raises:
            RecordError: the chat template refuses the messages.
        """
        if answer is None:
            return self.template.opening(messages, tools)
        return self.template.suffix(messages, answer_ids=answer.turn.completion_ids, tools=tools)

    def prompt(
        self, ids: Sequence[int], answer: Answer | None, messages: Sequence[Message], tools: Tools = ()
    ) -> Prompt:
        """The prompt of new messages whose ids these are."""
        history = TokenHistory(ids) if answer is None else answer.history.with_context(ids)
        return Prompt(history, tuple(messages), tuple(tools), answer)

    async def draw(self, prompt: Prompt, *, max_new_tokens: int, sampling: Sampling | None = None) -> Answer:
        """Draws an answer and records it.

        Raises:
            InfraFault: the policy failed, or what it drew is not whole. Nothing is recorded.
        """
        sampling = self.sampling if sampling is None else sampling
        drawn = await self._policy.answer(prompt, sampling=sampling, max_new_tokens=max_new_tokens)
        if not 0 < len(drawn.output_ids) <= max_new_tokens:
            detail = f"{len(drawn.output_ids)} ids drawn where 1 to {max_new_tokens} were asked for"
            raise InfraFault(FaultCause.SAMPLER, detail)
        try:
            turn, history = prompt.history.with_turn(drawn, sampling)
        except RecordError as error:
            raise InfraFault(FaultCause.SAMPLER, str(error)) from error
        text = self.template.answer_text(turn.completion_ids)
        message = read_answer(text, reasoning=self._reasoning, tools=bool(prompt.tools))
        answer = Answer(turn, message, text, history, prompt)
        self._beside(answer).append(answer)
        return answer

    def withdraw(self, answer: Answer) -> None:
        """Takes back an answer that never reached its client. One that was gone on from did reach it, and stays."""
        if not answer.followers and answer in self._beside(answer):
            self._beside(answer).remove(answer)

    def _listed(self) -> list[Answer]:
        """Every recorded answer, branch by branch."""
        found: list[Answer] = []
        waiting = list(reversed(self._roots))
        while waiting:
            found.append(waiting.pop())
            waiting.extend(reversed(found[-1].followers))
        return found

    @staticmethod
    def _turns(answers: Sequence[Answer]) -> tuple[Turn, ...]:
        before = (None, *answers)
        return tuple(
            answer.turn if answer.prompt.after is last else replace(answer.turn, opens=True)
            for last, answer in zip(before, answers, strict=False)
        )

    def _beside(self, answer: Answer) -> list[Answer]:
        return self._roots if answer.prompt.after is None else answer.prompt.after.followers
