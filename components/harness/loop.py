"""The agent's side of a trial: draw, read, type, look (Terminus-2's contract, on token ids).

Invariants:
- every prompt is the one before, the answer as it was drawn, and a suffix (`components.gateway.Trajectory`), until
  the history is rewritten (`components.harness.compaction`), where a conversation of its own begins;
- no request exceeds the token wall: prompt + answer ≤ max_context_tokens. Where histories are rewritten, ordinary
  answers leave free what that takes;
- an answer that cannot be read, or was cut, executes nothing and the policy is told why;
- the loop ends with a StopReason, or with an InfraFault raised by what it stands on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from components.config import HarnessConfig
from components.config.rollout import COMPACTION_TURNS
from components.errors import CompactionError, StopReason
from components.gateway import Answer, Prompt, Trajectory, user
from components.harness.compaction import Compaction
from components.harness.observation import Lookout, as_text
from components.harness.parse import Command, ParsedTurn
from components.harness.prompt import Wording
from components.outcomes import AgentStands, stop_of
from components.sandbox import Terminal


@dataclass(slots=True)
class Progress:
    """How far a trial has come; read by others when it is cut short."""

    turns: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Tally:
    """What a trial did, counted."""

    commands: int = 0
    repeated_commands: int = 0
    parse_failures: int = 0
    warnings: int = 0
    completion_claims: int = 0
    compactions_attempted: int = 0
    compactions_succeeded: int = 0


@dataclass(slots=True)
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


class AgentLoop:
    """One run of one policy at one terminal. `trajectory`, `tally` and `progress` are current at every await.

    Attributes:
        compaction_failure: why a history could not be rewritten; None while none failed.
    """

    def __init__(
        self,
        *,
        trajectory: Trajectory,
        terminal: Terminal,
        wording: Wording,
        config: HarnessConfig,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self.trajectory = trajectory
        self.tally = Tally()
        self.compaction_failure: str | None = None
        self._terminal = terminal
        self._wording = wording
        self._config = config
        self._progress = progress
        self._clock = clock
        self._last_keystrokes: tuple[str, ...] = ()
        self._lookout = Lookout()

    async def run(self, instruction: str) -> StopReason:
        """Plays until something ends it."""
        with self._clock.phase("execute"):
            text = self._wording.opening(instruction, await self._first_screen())
        compaction = self._compaction(instruction, text)
        answer: Answer | None = None
        failures, claimed = 0, False
        while True:
            prompt = self.trajectory.follow(answer, [user(text)])
            room = self._config.max_context_tokens - len(prompt)
            if compaction is not None and self._turns_left > COMPACTION_TURNS:
                if answer is not None and compaction.is_due(prompt):
                    rewritten = await self._rewrite(compaction, answer)
                    if stop := stop_of(AgentStands(compaction_failed=rewritten is None)):
                        return stop
                    prompt = rewritten or prompt
                room = self._config.max_context_tokens - len(prompt) - compaction.config.reserved_tokens
            if stop := stop_of(AgentStands(room=room)):
                return stop
            answer = await self._draw(prompt, min(room, self._config.max_turn_tokens))
            at_wall = self._was_cut(answer) and len(answer.history) >= self._config.max_context_tokens
            if stop := stop_of(AgentStands(cut_at_wall=at_wall)):
                return stop
            parsed = self._read(answer)
            failures = 0 if parsed.error is None else failures + 1
            if parsed.error is None:
                await self._execute(parsed.commands)
            if stop := stop_of(self._after_turn(parsed, failures, claimed)):
                return stop
            if parsed.error is None:
                claimed = parsed.task_complete
                text = await self._look(parsed)
            else:
                text = self._told(answer, parsed.error, parsed.warnings)

    def _after_turn(self, parsed: ParsedTurn, failures: int, claimed: bool) -> AgentStands:
        config = self._config
        return AgentStands(
            turns=self._progress.turns,
            max_turns=config.max_turns,
            unreadable=failures,
            max_unreadable=config.max_parse_failures,
            shell_alive=parsed.error is not None or self._terminal.alive,
            complete=parsed.task_complete and (claimed or not config.confirm_completion),
        )

    @property
    def _turns_left(self) -> int:
        return self._config.max_turns - self._progress.turns

    def _compaction(self, instruction: str, opening: str) -> Compaction | None:
        if self._config.compaction is None:
            return None
        return Compaction(
            config=self._config.compaction,
            trajectory=self.trajectory,
            wording=self._wording,
            draw=self._draw,
            wall=self._config.max_context_tokens,
            instruction=instruction,
            opening=opening,
        )

    async def _rewrite(self, compaction: Compaction, answer: Answer) -> Prompt | None:
        """The prompt of a rewritten history. What was to be said next is left out: the screen stands in its place."""
        self.tally.compactions_attempted += 1
        with self._clock.phase("execute"):
            screen = await self._screen()
        try:
            prompt = await compaction.rewrite(answer, screen)
        except CompactionError as error:
            self.compaction_failure = str(error)
            return None
        self.tally.compactions_succeeded += 1
        return prompt

    async def _first_screen(self) -> str:
        await self._terminal.settle(self._config.max_command_s, at_prompt=True)
        return await self._output()

    async def _draw(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        with self._clock.phase("sample"):
            answer = await self.trajectory.draw(prompt, max_new_tokens=max_new_tokens)
        self._progress.turns += 1
        self._progress.tokens = len(answer.history)
        return answer

    def _was_cut(self, answer: Answer) -> bool:
        return answer.turn.finish_reason == "length"

    def _read(self, answer: Answer) -> ParsedTurn:
        parsed = ParsedTurn(error="cut") if self._was_cut(answer) else self._wording.parse(answer.text)
        self.tally.parse_failures += parsed.error is not None
        self.tally.warnings += len(parsed.warnings)
        self.tally.completion_claims += parsed.task_complete
        return parsed

    def _told(self, answer: Answer, error: str, warnings: tuple[str, ...]) -> str:
        """What the policy is told of an answer of which nothing was executed."""
        if self._was_cut(answer):
            return self._wording.cut(answer.text, len(answer.turn.completion_ids))
        return self._wording.rejected(error, warnings)

    async def _execute(self, commands: tuple[Command, ...]) -> None:
        keystrokes = tuple(command.keystrokes for command in commands)
        self.tally.repeated_commands += bool(keystrokes) and keystrokes == self._last_keystrokes
        self._last_keystrokes = keystrokes
        with self._clock.phase("execute"):
            for command in commands:
                self.tally.commands += 1
                await self._terminal.send(self._wording.keys(command.keystrokes))
                await self._wait(command.duration_s)
                if not self._terminal.alive:
                    return

    async def _wait(self, duration_s: float) -> None:
        config = self._config
        if config.return_at_prompt:
            duration_s = max(duration_s, config.patience_s)
        await self._terminal.settle(min(duration_s, config.max_command_s), at_prompt=config.return_at_prompt)

    async def _look(self, parsed: ParsedTurn) -> str:
        with self._clock.phase("execute"):
            output = await self._output()
        tell = self._wording.confirm if parsed.task_complete else self._wording.observation
        return tell(output, parsed.warnings)

    async def _screen(self) -> str:
        if self._config.new_output == "stream":
            return await self._terminal.screen()
        return as_text((await self._terminal.capture())[-self._config.rows :])

    async def _output(self) -> str:
        if self._config.new_output == "stream":
            output = self._wording.new_output(await self._terminal.new_output())
        else:
            lines = await self._terminal.capture()
            new = self._lookout.new(lines)
            screen = as_text(lines[-self._config.rows :])
            output = self._wording.screen(screen) if new is None else self._wording.new_output(new)
        return self._wording.limited(output)
