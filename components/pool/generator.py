"""Draws tasks from seeds.

Invariants: a task is a pure function of (seed, split, index, bounds); a task's content belongs to exactly one split, by
a digest of the content itself, so that what is held out is never trained on or demonstrated, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from components.config import PoolConfig
from components.pool.families import FAMILIES
from components.pool.lexicon import Draw
from components.pool.outline import Outline, difficulty
from components.pool.subtask import Subtask

GENERATOR_VERSION = "1"
"""Part of the lineage of every generated task. Changes when the same seed would give another task."""


class Split(StrEnum):
    """What a generated task may be used for."""

    TRAIN = "train"
    HELDOUT = "heldout"
    DEMONSTRATION = "demonstration"


SHARES = {Split.HELDOUT: range(1), Split.TRAIN: range(1, 4), Split.DEMONSTRATION: range(4, 8)}
"""Which eighths of all contents each split owns. Small tasks are few (720 ways to write one word into one file), so the
split is cut through the contents and not through the seeds."""


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A task before it is written: its subtasks in order."""

    task_id: str
    subtasks: tuple[Subtask, ...]

    @property
    def outline(self) -> Outline:
        """Its steps and files, as they are written down."""
        files = {path: text for subtask in self.subtasks for path, text in subtask.instance.files.items()}
        return Outline(tuple(subtask.step for subtask in self.subtasks), files)

    @property
    def instruction(self) -> str:
        return self.outline.instruction

    @property
    def files(self) -> Mapping[str, str]:
        """What stands in the working directory when the agent arrives."""
        return self.outline.files

    @property
    def checks(self) -> list[tuple[str, tuple[str, ...]]]:
        """(assertion id, call) of every assertion, e.g. `2-sort:equals`."""
        return self.outline.checks

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(subtask.family.name for subtask in self.subtasks)

    @property
    def category(self) -> str:
        """The group most subtasks are of; the earliest on a tie."""
        return Counter(subtask.family.group for subtask in self.subtasks).most_common(1)[0][0]

    @property
    def difficulty(self) -> str:
        return difficulty(len(self.subtasks))

    @property
    def content_digest(self) -> str:
        """Digest of what is asked and given, whatever the order of the subtasks."""
        parts = sorted(repr((s.instruction, sorted(s.instance.files.items()))) for s in self.subtasks)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def split(self) -> Split:
        """The split this content belongs to."""
        eighth = int(self.content_digest[:8], 16) % 8
        return next(split for split, eighths in SHARES.items() if eighth in eighths)


def generate(config: PoolConfig, split: Split, *, seed: int) -> Iterator[GeneratedTask]:
    """Yields distinct tasks of `split` without end. A longer prefix begins with the shorter one."""
    seen: set[str] = set()
    number = 0
    for attempt in count():
        task = _draw(f"{split}-{number:05d}", random.Random(f"{GENERATOR_VERSION}/{split}/{seed}/{attempt}"), config)
        if task.split is split and task.content_digest not in seen:
            seen.add(task.content_digest)
            number += 1
            yield task


def _draw(task_id: str, rng: random.Random, config: PoolConfig) -> GeneratedTask:
    """1 to 5 subtasks of distinct families, on names and words that no two of them share."""
    draw = Draw(rng)
    amount = rng.randint(config.min_subtasks, config.max_subtasks)
    families = rng.sample(sorted(FAMILIES), amount)
    return GeneratedTask(task_id, tuple(Subtask(FAMILIES[name], FAMILIES[name].draw(draw)) for name in families))
