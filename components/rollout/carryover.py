"""What one step hands to the next: the trials that it launched and did not admit.

Invariant: pure and small enough for a step's record, so that a leg that is killed hands over the same. A trial whose
sandbox did not survive starts again from its task and keeps its streak: a task is passed over, never forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from components.rollout.scheduler import Launch, Plan


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A place in a task's group that its step passed over.

    Attributes:
        task_id: the task.
        trial_id: of the trial that waits to go on; None when it starts anew.
        member: the place, from 0.
        streak: how many steps in a row have passed it over.
    """

    task_id: str
    trial_id: str | None
    member: int
    streak: int

    def record(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Return:
    """How an unfinished trial comes back: its launch, and whether it goes on or starts anew."""

    trial: Unfinished
    launch: Launch
    resumed: bool


def returns(
    unfinished: Sequence[Unfinished], alive: Container[str], plan: Plan, tasks: int, *, max_streak: int
) -> list[Return]:
    """The launches that a step begins with, one for each unfinished trial of the step before, in its order.

    Args:
        alive: ids of the trials that wait to go on in this process.
        tasks: how many tasks the supply holds; the launches take the indices after them.
        max_streak: what starts anew after being passed over so often is protected; the longest streaks first, as many
            as fit into the batch. What goes on comes to its end without.
    """
    resumed = [trial.trial_id is not None and trial.trial_id in alive for trial in unfinished]
    worthy = [i for i, trial in enumerate(unfinished) if trial.streak >= max_streak and not resumed[i]]
    protected = set(sorted(worthy, key=lambda index: -unfinished[index].streak)[: plan.batch])
    return [
        Return(trial, Launch(tasks + index, 1, trial.member, index in protected), resumed[index])
        for index, trial in enumerate(unfinished)
    ]
