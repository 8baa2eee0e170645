"""Text to train the tokenizer on: demonstrations whose observations are imagined instead of executed.

Only its vocabulary matters; what a command really prints is seen in the demonstrations themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from components.config import HabitConfig, PoolConfig
from components.demonstrations.demonstrator import PROMPT, Demonstrator
from components.pool import GeneratedTask, Split, generate

TASKS = 600
"""Enough to see every word a few dozen times."""

USER, ASSISTANT = "user\n", "assistant\n"
"""The roles as the chat rendering writes them, between its special tokens."""

_HALF = HabitConfig(blind_error_rate=0.5, other_error_rate=0.5, early_stop_rate=0.0)
_REFUSAL = "mkdir: cannot create directory '{path}': No such file or directory\n"


def corpus(config: PoolConfig, *, seed: int) -> Iterator[str]:
    """Yields the texts of whole trajectories, one piece a turn."""
    for task in islice(generate(config, Split.DEMONSTRATION, seed=seed), TASKS):
        yield USER + task.instruction + PROMPT
        yield from _turns(task, Demonstrator(task, _HALF, seed))


def _turns(task: GeneratedTask, demonstrator: Demonstrator) -> Iterator[str]:
    observation = PROMPT
    for turn in range(sum(len(subtask.instance.checks) for subtask in task.subtasks) + 1):
        text = demonstrator(turn, observation)
        yield ASSISTANT + text
        commands = json.loads(text)["commands"]
        if not commands:
            return
        observation = _imagine(task, commands[0]["keystrokes"].strip()) + PROMPT
        yield USER + observation


def _imagine(task: GeneratedTask, command: str) -> str:
    """Roughly what `command` prints in a fresh environment of `task`."""
    *_, last = command.split("; ")
    match last.split():
        case ["cat", path] | ["sed", _, path]:
            return task.files.get(path, "")
        case ["grep", "-sl", word, "*"]:
            holders = sorted(path for path, text in task.files.items() if word in text.split())
            return "".join(f"{path}\n" for path in holders)
        case ["mkdir", path] if "/" in path:
            return _REFUSAL.format(path=path)
        case _:
            return ""
