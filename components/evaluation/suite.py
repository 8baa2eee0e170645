"""A folder of Harbor task directories as a suite to be evaluated on.

Invariant: every task directory of the folder is in exactly one of three lists: it is run; it ships no verifier, and
what was done in it cannot be scored (which is not a score of 0); or it cannot be used, with the reason. How much of a
published benchmark that leaves stands beside every number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.config import BENCHMARKS, HELDOUT, SandboxConfig, SuiteConfig
from components.errors import TaskError
from components.pool import Pool, Task, load_task

DEFAULT_HEADLINE = "resolved"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks to evaluate on.

    Attributes:
        name: of its numbers.
        tasks: those that are run.
        headline: which number stands for it: `resolved` or `verifier_reward`.
        unscorable: names of the tasks that ship no verifier.
        unusable: why a task cannot be run, by its name.
        expected: how many tasks the published benchmark has; None where it is none.
    """

    name: str
    tasks: tuple[Task, ...]
    headline: str = DEFAULT_HEADLINE
    unscorable: tuple[str, ...] = ()
    unusable: Mapping[str, str] | None = None
    expected: int | None = None

    @property
    def digest(self) -> str:
        """Names what is run."""
        return hashlib.sha256("".join(sorted(task.ref.digest for task in self.tasks)).encode()).hexdigest()[:16]

    def coverage(self) -> dict[str, Any]:
        """How much of the suite the numbers are of."""
        unusable = dict(self.unusable or {})
        told: dict[str, Any] = {
            "digest": self.digest,
            "run": len(self.tasks),
            "unscorable": len(self.unscorable),
            "unusable": unusable,
        }
        return told if self.expected is None else told | {"expected": self.expected}

    def caveats(self) -> list[str]:
        """What a reader of its numbers must know, in sentences; empty where the suite is whole."""
        told = []
        if self.unscorable:
            told.append(f"{len(self.unscorable)} tasks ship no verifier: they are unscorable, and in no figure")
        if self.unusable:
            names = ", ".join(sorted(self.unusable)[:10])
            told.append(f"{len(self.unusable)} tasks cannot be run here: {names}")
        if self.expected is not None and len(self.tasks) != self.expected:
            told.append(f"{len(self.tasks)} of the {self.expected} tasks of the benchmark were run")
        return told


def heldout(pool: Pool, count: int) -> Suite:
    """The pool's own held-out tasks: always the same `count` of them.

    Raises:
        ValueError: the pool has fewer.
        TaskError: one is not what was indexed.
    """
    return Suite(HELDOUT, tuple(pool.load(ref.task_id) for ref in pool.sample(count, seed=0)))


def load_suite(config: SuiteConfig, sandbox: SandboxConfig) -> Suite:
    """Reads the folder of a suite, whose tasks will be given boxes of `sandbox`.

    Raises:
        TaskError: there is no such folder, or no task directory in it.
    """
    folder = Path(config.path)
    try:
        places = sorted(path for path in folder.iterdir() if (path / "task.toml").is_file())
    except OSError as error:
        raise TaskError(config.path, [f"evaluation.suites.{config.name}: cannot be read: {error.strerror}"]) from error
    if not places:
        raise TaskError(config.path, [f"evaluation.suites.{config.name}: no subfolder has a task.toml"])
    tasks, unscorable, unusable = [], [], {}
    for path in places:
        if not (path / "tests" / "test.sh").is_file():
            unscorable.append(path.name)
            continue
        try:
            task = load_task(path)
            task.sandbox_spec(sandbox)
        except TaskError as error:
            unusable[path.name] = "; ".join(error.problems)
        else:
            tasks.append(task)
    published = None if config.benchmark is None else BENCHMARKS[config.benchmark]
    return Suite(
        name=config.name,
        tasks=tuple(tasks),
        headline=DEFAULT_HEADLINE if published is None else published.headline,
        unscorable=tuple(unscorable),
        unusable=unusable,
        expected=None if published is None else published.tasks,
    )
