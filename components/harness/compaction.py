"""Rewriting a history that nears the token wall: summary, questions, answers (Terminus-2's three calls).

Invariants: no call exceeds the wall; each gives a whole answer or the rewriting fails with its reason, and nothing is
sent on. What follows is a conversation of its own, so that the stitcher opens a chunk there. The three answers are the
policy's own tokens, recorded like any other: they are trained, with the reward of their trial.

    history ‖ summary? → summary          goes on from the history
    task, summary, screen → questions     a conversation of its own
    history ‖ summary ‖ questions → answers
    first prompt, task and summary and screen, questions, answers → the trial goes on
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from components.config import CompactionConfig
from components.errors import CompactionError
from components.gateway import Answer, Message, Prompt, Trajectory, user
from components.harness.prompt import Wording

Draw = Callable[[Prompt, int], Awaitable[Answer]]
"""(prompt, most tokens of the answer) -> the answer, counted as a turn."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Rewrites the histories of one trial.

    Attributes:
        wall: most tokens of a prompt and its answer.
        instruction: the task, as it was given.
        opening: the trial's first user message.
    """

    config: CompactionConfig
    trajectory: Trajectory
    wording: Wording
    draw: Draw
    wall: int
    instruction: str
    opening: str

    def is_due(self, prompt: Prompt) -> bool:
        """Whether a prompt leaves too little free to be sent."""
        return self.wall - len(prompt) <= self.config.proactive_threshold_tokens

    async def rewrite(self, answer: Answer, screen: str) -> Prompt:
        """The prompt that goes on from a new history, in place of what would have followed `answer`.

        Raises:
            CompactionError: a call gave nothing whole, or what it gave is too long to go on from.
        """
        config, wording, follow = self.config, self.wording, self.trajectory.follow
        request = wording.summary(self.instruction)
        summary = await self._ask("summary", follow(answer, [user(request)]), config.summary_max_tokens)
        briefing = user(wording.questions(self.instruction, summary.text, screen))
        questions = await self._ask("questions", follow(None, [briefing]), config.questions_max_tokens)
        request = wording.answers(questions.text)
        answers = await self._ask("answers", follow(summary, [user(request)]), config.answers_max_tokens)
        handoff = [
            user(self.opening),
            briefing,
            Message("assistant", questions.text),
            user(wording.handoff(answers.text)),
        ]
        prompt = follow(None, handoff)
        if self.is_due(prompt):
            raise CompactionError(f"the rewritten history takes {len(prompt)} of {self.wall} tokens: no room to go on")
        return prompt

    async def _ask(self, name: str, prompt: Prompt, max_tokens: int) -> Answer:
        room = min(max_tokens, self.wall - len(prompt))
        if room < 1:
            raise CompactionError(f"{name}: a request of {len(prompt)} tokens leaves no room for an answer")
        answer = await self.draw(prompt, room)
        if answer.turn.finish_reason == "length":
            raise CompactionError(f"{name}: cut at {room} tokens")
        if not answer.text.strip():
            raise CompactionError(f"{name}: empty")
        return answer
