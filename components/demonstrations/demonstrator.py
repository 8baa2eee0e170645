"""Scripted policies: what a demonstrator types, turn by turn, given what its screen shows.

Invariant: a demonstration is a pure function of (task, habits, seed, observations). Whether it succeeds is decided by
running it; nothing here knows the verifier.
"""

from __future__ import annotations

import json
import random

from components.config import HabitConfig
from components.demonstrations.ways import BLIND, WAYS
from components.pool import GeneratedTask
from components.pool.lexicon import TYPOS
from components.pool.subtask import Subtask

ORACLE = HabitConfig(blind_error_rate=0.0, other_error_rate=0.0, early_stop_rate=0.0)
"""The demonstrator without habits: passes every task."""

PROMPT = "$ "
NOTHING = "x"
"""Typed for what was looked for on the screen and not found there."""


class Demonstrator:
    """The script of one trajectory: `demonstrator(turn, observation)` is the text of that turn's answer."""

    def __init__(self, task: GeneratedTask, habits: HabitConfig, seed: str | int) -> None:
        rng = random.Random(f"{seed}/{task.task_id}")
        self.subtasks = task.subtasks
        self.total = len(task.subtasks)
        stops_early = self.total > 1 and rng.random() < habits.early_stop_rate
        self._steps = [
            (number, template)
            for number, subtask in enumerate(task.subtasks[: self.total - stops_early], 1)
            for template in _choose(subtask, habits, rng)
        ]

    def __call__(self, turn: int, observation: str) -> str:
        if turn >= len(self._steps):
            return answer_text(f"{self.total}/{self.total} done", "stop", (), done=True)
        number, template = self._steps[turn]
        subtask = self.subtasks[number - 1]
        command = subtask.fill(template, found=_found(observation), seen=_seen(observation))
        return answer_text(f"step {number}/{self.total}", f"{number}:{subtask.instruction}", (command,), done=False)


def answer_text(analysis: str, plan: str, commands: tuple[str, ...], *, done: bool) -> str:
    """One answer in the harness's form, without a single optional space: every token of it is trained."""
    answer = {
        "analysis": analysis,
        "plan": plan,
        "commands": [{"keystrokes": f"{command}\n", "duration": 0.1} for command in commands],
        "task_complete": done,
    }
    return json.dumps(answer, separators=(",", ":"))


def _choose(subtask: Subtask, habits: HabitConfig, rng: random.Random) -> tuple[str, ...]:
    way = WAYS[subtask.family.name]
    rate = habits.blind_error_rate if subtask.family.name in BLIND else habits.other_error_rate
    return way.habit if rng.random() < rate else way.right


def _screen(observation: str) -> list[str]:
    return observation.removesuffix(PROMPT).split("\n")


def _found(observation: str) -> str:
    """The names that a search printed, one a line."""
    return " ".join(line for line in _screen(observation) if line) or NOTHING


def _seen(observation: str) -> str:
    """The key among `key=value` lines that is no known key."""
    keys = [line.partition("=")[0] for line in _screen(observation) if "=" in line]
    return next((key for key in keys if key not in TYPOS), NOTHING)
