"""Which graded trials SFT learns from (design section 5): pure, and the same whatever order they come in.

Invariant: every trial is kept or left out for one reason, and what is kept passed the bar, fits, repeats nothing else
that is kept, and is within the cap of its task. Of several that could be kept the seed decides, by their ids.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from components.config import RejectionConfig
from components.outcomes import REJECTIONS
from components.records import Reward, Sample, Trial
from components.rollout import LedgerRow, Outcome


class Reason(StrEnum):
    """Why a trial is not learned from, in the order in which it is asked."""

    FAULT = "fault"
    """The infrastructure failed, a teacher's endpoint among it: there is no verdict."""
    BUDGET = "budget"
    """The teacher's budget was spent: there is no verdict."""
    DRIFT = "drift"
    """What would be trained on is not what was sampled, or not what inference would be given."""
    BAR = "bar"
    """It did not solve its task, or not enough of it."""
    EMPTY = "empty"
    """Nothing was answered in it."""
    LENGTH = "length"
    DUPLICATE = "duplicate"
    """Token for token another trial, or command for command another one of its task."""
    CAP = "cap"
    """Enough others of its task are learned from."""


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """A trial with a verdict.

    Attributes:
        samples: its streams.
        commands: what it typed, answer by answer.
        drift: what is wrong with its record; None where nothing is.
    """

    trial: Trial
    samples: tuple[Sample, ...]
    reward: Reward
    commands: tuple[str, ...] = ()
    drift: str | None = None

    @property
    def content(self) -> bytes:
        """Names its tokens and what of them is trained on."""
        digest = hashlib.sha256()
        for sample in self.samples:
            digest.update(len(sample.tokens).to_bytes(8, "little"))
            digest.update(sample.tokens.astype("<i4").tobytes() + sample.loss_mask.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A trial that is not learned from."""

    trial_id: str
    task_id: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What is learned from, in the order of the seed, and what is not, in the order asked."""

    kept: tuple[Graded, ...]
    left_out: tuple[LeftOut, ...]

    def counts(self) -> dict[str, int]:
        """Trials left out by reason, every reason present."""
        found = Counter(each.reason for each in self.left_out)
        return {str(reason): found[reason] for reason in Reason}


def choose(graded: Iterable[Graded], config: RejectionConfig, *, seed: int) -> Selection:
    """Filters trials.

    Args:
        graded: no trial twice.
        seed: decides which of several duplicates, and which of a task's trials, are kept.
    """
    kept: list[Graded] = []
    left_out: list[LeftOut] = []
    contents: dict[bytes, str] = {}
    typed: dict[tuple[str, tuple[str, ...]], str] = {}
    tasks: Counter[str] = Counter()
    for each in sorted(graded, key=lambda one: _place(seed, one.trial.trial_id)):
        name, task = each.trial.trial_id, each.trial.task.task_id
        told = _unfit(each, config)
        twin = contents.get(each.content) or (typed.get((task, each.commands)) if each.commands else None)
        if told is None and twin is not None:
            told = Reason.DUPLICATE, f"of trial {twin}"
        if told is None and config.per_task is not None and tasks[task] >= config.per_task:
            told = Reason.CAP, f"{tasks[task]} others of its task are kept"
        if told is not None:
            left_out.append(LeftOut(name, task, *told))
            continue
        kept.append(each)
        contents[each.content] = typed[task, each.commands] = name
        tasks[task] += 1
    return Selection(tuple(kept), tuple(left_out))


def faulted(rows: Iterable[LedgerRow], unpaid: Iterable[str] = ()) -> list[LeftOut]:
    """Of a step's trials, those that have no verdict; `unpaid` are those that a spent budget ended."""
    spent, found = set(unpaid), []
    for row in rows:
        if row.outcome is Outcome.ADMITTED:
            continue
        reason = Reason.DRIFT if row.fault in REJECTIONS else Reason.FAULT
        if row.trial_id in spent:
            reason = Reason.BUDGET
        told = f"{row.fault}: {row.detail}" if row.fault is not None else row.detail
        found.append(LeftOut(row.trial_id, row.task_id, reason, told))
    return found


def _unfit(each: Graded, config: RejectionConfig) -> tuple[Reason, str] | None:
    """Why a trial is left out whatever the others are."""
    if each.drift is not None:
        return Reason.DRIFT, each.drift
    if not _passes(each.reward, config.bar):
        return Reason.BAR, f"{each.reward.passed} of {each.reward.total} assertions, bar {config.bar:g}"
    if not any(sample.loss_mask.any() for sample in each.samples):
        return Reason.EMPTY, "no answer"
    longest = _longest(each.samples)
    if config.max_tokens is not None and longest > config.max_tokens:
        return Reason.LENGTH, f"{longest} tokens where {config.max_tokens} are allowed"
    return None


def _passes(reward: Reward, bar: float) -> bool:
    """A task that is solved passes every bar; a verdict alone passes none when it is no."""
    share = reward.passed / reward.total if reward.total else 0.0
    return reward.outcome or (bar < 1 and share >= bar)


def _longest(samples: Sequence[Sample]) -> int:
    return max(len(sample.tokens) for sample in samples)


def _place(seed: int, trial_id: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{trial_id}".encode()).digest()
