"""The words around a task: what the policy is told. Two styles are ours; a third is Harbor's (`harbor.py`).

`longshell` explains the whole contract in our own words. `terse` says nothing but the task and the terminal, for models
whose every token is trained. What both share is the structure (Terminus-2's): one user message with the task and the
terminal, then one observation a turn, errors and warnings in front of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from components.harness.observation import OMISSION, limit_output
from components.harness.parse import ParsedTurn, parse_response

CONTRACT = """\
You work in a Linux terminal and have been given a task. You act by answering with one JSON object and nothing else:

{{
  "analysis": "what the terminal shows, and what is done and what is missing",
  "plan": "what you do next and what you expect of it",
  "commands": [
    {{"keystrokes": "ls -la\\n", "duration": 0.1}},
    {{"keystrokes": "make test\\n", "duration": 20.0}}
  ],
  "task_complete": false
}}

"analysis", "plan" and "commands" are required and come in this order. "commands" may be empty, to wait and look again.

- "keystrokes" are typed into the terminal exactly as they stand. End a shell command with \\n, or it is not entered.
  Control keys are written as their characters (\\u0003 is Ctrl-C).
- "duration" is how many seconds to wait for the effect: 0.1 for what is immediate, 1 for a short program, more for
  builds and downloads. It never needs to exceed {max_command_s:g}: look again with empty keystrokes instead.
- Commands are typed one after another; you see the terminal once, after the last one. At most {observation_bytes} bytes
  of new output are shown, the middle of longer output is left out.
- Set "task_complete" to true only once the task is done and checked. You are asked to confirm it.

Task:
{instruction}

Terminal:
{terminal}"""

SUMMARY = """\
The conversation is about to become too long, and what came before will be taken out of your sight. Put down, in plain
text and not as JSON, everything that is needed to finish the task without it:

- what you ran that mattered, and what came of it;
- what you found out: paths, settings, versions, the wording of errors;
- what went wrong, and what you did about it;
- how things stand now, and what is still to be done."""

QUESTIONS = """\
You take over a task in a Linux terminal that is partly done. All you have is below. Before you go on, ask whoever
worked on it what you have to know and cannot read here: at least five questions, in plain text. You can ask only once.

Task:
{instruction}

What was put down about the work so far:
{summary}

Terminal:
{screen}"""

ANSWERS = """\
Whoever goes on with the task has read what you put down and asks the following. Answer every question, in plain text,
as exactly as you can."""

HANDOFF = """\
The answers to your questions:

{answers}

Go on with the task from here, in the form that was described at the beginning: one JSON object an answer. You cannot
ask again."""


class Wording(Protocol):
    """The texts of one style, each of a user turn, and how its answers are read."""

    @property
    def separator(self) -> str:
        """What stands after an end token in the chat rendering."""

    def parse(self, text: str) -> ParsedTurn:
        """What an answer asks for. Never raises."""

    def keys(self, keystrokes: str) -> str:
        """The characters that a command's keystrokes stand for."""

    def limited(self, output: str) -> str:
        """Terminal output, its middle left out where it is too long."""

    def new_output(self, text: str) -> str:
        """Output that is known to be new."""

    def screen(self, text: str) -> str:
        """The screen, where what is new on it cannot be told."""

    def opening(self, instruction: str, terminal: str) -> str:
        """The first user turn."""

    def observation(self, output: str, warnings: tuple[str, ...] = ()) -> str:
        """What came of an answer."""

    def rejected(self, error: str, warnings: tuple[str, ...] = ()) -> str:
        """Tells that an answer could not be read. Nothing of it was executed."""

    def cut(self, text: str, tokens: int) -> str:
        """Tells that an answer was cut after so many tokens. Nothing of it was executed."""

    def confirm(self, output: str, warnings: tuple[str, ...] = ()) -> str:
        """Asks whether the task is really done."""

    def summary(self, instruction: str) -> str:
        """First call of a compaction: what was done."""

    def questions(self, instruction: str, summary: str, screen: str) -> str:
        """Second call, to one who has seen nothing of it: what does the summary leave open?"""

    def answers(self, questions: str) -> str:
        """Third call, to the one who has seen it all."""

    def handoff(self, answers: str) -> str:
        """What the rewritten history ends with: from here the trial goes on."""


@dataclass(frozen=True, slots=True)
class OwnWording:
    """The two styles that are ours. See `Wording`."""

    style: Literal["longshell", "terse"]
    max_command_s: float
    observation_bytes: int

    @property
    def separator(self) -> str:
        return "\n" if self.style == "longshell" else ""

    def parse(self, text: str) -> ParsedTurn:
        return parse_response(text)

    def keys(self, keystrokes: str) -> str:
        return keystrokes

    def limited(self, output: str) -> str:
        marker = OMISSION if self.style == "longshell" else "\n...\n"
        return limit_output(output, self.observation_bytes, marker=marker)

    def opening(self, instruction: str, terminal: str) -> str:
        if self.style == "terse":
            return f"{instruction.strip()}\n{terminal}"
        return CONTRACT.format(
            instruction=instruction.strip(),
            terminal=terminal,
            max_command_s=self.max_command_s,
            observation_bytes=self.observation_bytes,
        )

    def new_output(self, text: str) -> str:
        if self.style == "terse":
            return text
        return "New output of the terminal:\n" + text.strip("\n")

    def screen(self, text: str) -> str:
        return "The terminal's screen:\n" + text.rstrip("\n")

    def observation(self, output: str, warnings: tuple[str, ...] = ()) -> str:
        if self.style == "terse":
            return "".join(f"! {warning}\n" for warning in warnings) + output
        return self._warned(warnings) + output

    def rejected(self, error: str, warnings: tuple[str, ...] = ()) -> str:
        if self.style == "terse":
            return f"ERROR: {error}\n$ "
        return (
            f"Your answer could not be read: {error}\n{self._warned(warnings)}"
            "None of it was executed. Answer again with one JSON object in the form described above."
        )

    def cut(self, text: str, tokens: int) -> str:
        return self.rejected(f"it was cut at {tokens} tokens")

    def confirm(self, output: str, warnings: tuple[str, ...] = ()) -> str:
        if self.style == "terse":
            return "".join(f"! {warning}\n" for warning in warnings) + f"{output}\ndone? "
        return (
            self._warned(warnings)
            + f"{output}\n\n"
            + "You said that the task is complete. It will be graded as it stands and you cannot change it afterwards. "
            + 'If it is complete, answer with "task_complete": true once more; otherwise go on working.'
        )

    def summary(self, instruction: str) -> str:
        if self.style == "terse":
            return "summary? "
        return SUMMARY

    def questions(self, instruction: str, summary: str, screen: str) -> str:
        if self.style == "terse":
            return f"{instruction.strip()}\n{summary.strip()}\n{screen}\nquestions? "
        return QUESTIONS.format(instruction=instruction.strip(), summary=summary.strip(), screen=screen)

    def answers(self, questions: str) -> str:
        if self.style == "terse":
            return f"{questions.strip()}\nanswers? "
        return f"{ANSWERS}\n\n{questions.strip()}"

    def handoff(self, answers: str) -> str:
        if self.style == "terse":
            return f"{answers.strip()}\n$ "
        return HANDOFF.format(answers=answers.strip())

    def _warned(self, warnings: tuple[str, ...]) -> str:
        return f"About your last answer: {'; '.join(warnings)}.\n" if warnings else ""
