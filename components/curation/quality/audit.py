"""Audits tasks by a judge: several opinions a task, several tasks at once, within a budget.

Invariant: a task has as many whole opinions as were asked for, or it is unjudged, with the cause. Nothing is guessed
from fewer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from components.artifacts import ArtifactStore
from components.config import AuditConfig
from components.curation.endpoint import Endpoint, Unanswered
from components.curation.quality.answer import BadAnswer, read_opinion
from components.curation.quality.asking import Conversation, Purse, Question
from components.curation.quality.quoting import show
from components.curation.quality.rubric import SYSTEM, schema
from components.curation.quality.verdict import UNJUDGED, Assessment, Verdict, decide
from components.curation.result import GateResult
from components.errors import ServiceError
from components.pool import Task

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subject:
    """A task to be audited, with what the gates saw of it; None where it was not run.

    `probed` where it was tried to earn its reward without its work.
    """

    task: Task
    evidence: GateResult | None
    probed: bool = False


def question(subject: Subject) -> Question:
    """What the judge is asked of a task."""
    shown = show(subject.task, subject.evidence, subject.probed)
    return Question(subject.task.ref.digest, SYSTEM, f"{shown}\n\nReview this task.", schema(), "opinion")


async def assess(
    subjects: Sequence[Subject],
    endpoint: Endpoint,
    store: ArtifactStore,
    purse: Purse,
    config: AuditConfig,
    on_result: Callable[[Assessment], None] | None = None,
) -> list[Assessment]:
    """The audit of every subject, in their order.

    Raises:
        ServiceError: the endpoint is away: it answered about no task, or stopped answering.
        ConfigError: it refuses every request, or tells no token counts though there is a budget.
    """
    found: dict[str, Assessment] = {}
    unanswered: list[str] = []

    async def one(subject: Subject) -> None:
        ref = subject.task.ref
        try:
            talk = Conversation(question(subject), endpoint, store, purse)
            opinions = [await talk.usable(read_opinion, config.judge.attempts) for _ in range(config.judge.samples)]
            result = decide(ref.task_id, ref.digest, opinions, config, subject.evidence, subject.probed)
        except (BadAnswer, Unanswered) as error:
            unanswered.extend([str(error)] if isinstance(error, Unanswered) else [])
            result = Assessment(ref.task_id, ref.digest, Verdict.UNJUDGED, cause=UNJUDGED, reason=str(error))
            log.warning("audit: %s: unjudged: %s", ref.task_id, error)
        found[ref.task_id] = result
        if on_result is not None:
            on_result(result)

    await each(subjects, one, config.judge.concurrency)
    if unanswered and not purse.answers and not purse.empty:
        raise ServiceError(f"{config.judge.base_url} answered about no task; {unanswered[0]}")
    return [found[subject.task.ref.task_id] for subject in subjects]


async def each(subjects: Iterable[T], work: Callable[[T], Awaitable[None]], concurrency: int) -> None:
    """Works on everything, so much of it at once; the first error ends the rest and is raised as it is."""
    waiting = iter(subjects)

    async def worker() -> None:
        for subject in waiting:
            await work(subject)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as several:
        raise several.exceptions[0] from several


def counts(assessments: Iterable[Assessment]) -> Mapping[str, int]:
    """How many of each verdict, and how many of them contradict what was executed."""
    listed = list(assessments)
    verdicts = {str(verdict): sum(each.verdict is verdict for each in listed) for verdict in Verdict}
    return {**verdicts, "disagreements": sum(bool(each.disagreements) for each in listed)}
