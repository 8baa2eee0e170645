"""What the jobs that ask a judge share: the candidates with their evidence, the endpoint, and what was spent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from components.config import AuditConfig
from components.curation import Endpoint, GateResult
from components.curation.quality import Assessment, Purse, Subject, assess, counts
from components.jobs.job import Job, log
from components.naming import curated_keys
from components.pool import Pool

T = TypeVar("T")
REPORT_EVERY = 50


def audit_config(job: Job) -> AuditConfig:
    """The audit that the campaign asks for; only such campaigns have these jobs."""
    config = job.config.pool.audit
    assert config is not None, "a stage of the audit runs where pool.audit is set"
    return config


def evidence_of(job: Job, part: str) -> dict[str, GateResult]:
    """What the gates saw of each accepted task of a part."""
    results = [GateResult.from_json(each) for each in job.store.get_json(job.inputs["gates"])["results"][part]]
    return {result.task_id: result for result in results if result.rejection is None}


def accepted(job: Job, part: str) -> list[Subject]:
    """The candidates of a part that the gates accepted, with what they saw, in the order of the part's index."""
    pool, evidence = Pool(job.store.tree(job.inputs["candidates"]) / part), evidence_of(job, part)
    found = [ref.task_id for ref in pool.refs if ref.task_id in evidence]
    return [Subject(pool.load(name), evidence[name], _probed(job)) for name in found]


def repaired(job: Job) -> list[Subject]:
    """The repaired tasks. What the gates saw of the old version holds: only its instruction has changed."""
    pool, evidence = Pool(job.store.tree(job.inputs["repaired"])), evidence_of(job, "train")
    return [Subject(pool.load(ref.task_id), evidence[ref.task_id], _probed(job)) for ref in pool.refs]


def _probed(job: Job) -> bool:
    imported = job.config.pool.imported
    return imported is not None and imported.probes is not None


def assessments_of(job: Job, name: str) -> dict[str, Assessment]:
    """By task, what the audit whose key is the input `name` said."""
    found = [Assessment.from_json(each) for each in job.store.get_json(job.inputs[name])]
    return {each.task_id: each for each in found}


def ask(job: Job, work: Callable[[Endpoint, Purse], Awaitable[T]]) -> tuple[T, Purse]:
    """Works with the judge's endpoint. The purse knows what the stages before have spent."""
    config = audit_config(job)
    purse = Purse(config.judge, before=float(job.inputs.get("spent_usd", 0.0)))

    async def within() -> T:
        async with Endpoint(config.judge) as endpoint:
            return await work(endpoint, purse)

    found = asyncio.run(within())
    log.info("%d answers were used, of which %d were asked for now", purse.answers, purse.paid)
    return found, purse


def judged(job: Job, subjects: Sequence[Subject]) -> tuple[list[Assessment], Purse]:
    """The audit of every subject."""
    done = 0

    def tell(_: Assessment) -> None:
        nonlocal done
        done += 1
        if done % REPORT_EVERY == 0:
            log.info("%s: %d of %d tasks", job.stage, done, len(subjects))

    return ask(job, lambda endpoint, purse: assess(subjects, endpoint, job.store, purse, audit_config(job), tell))


def audited(job: Job, subjects: Sequence[Subject], decided: Sequence[Assessment] = ()) -> dict[str, Any]:
    """Audits, keeps every assessment in the store beside those that needed no judge, and gives the job's result."""
    assessments, purse = judged(job, subjects)
    assessments += decided
    (key,) = curated_keys(job.campaign, job.stage)
    job.store.put_json(key, [each.to_json() for each in assessments])
    found, cost = counts(assessments), purse.to_json()
    job.commit(job.stage, 0, measured(job.stage, {**found, **cost}), total=1)
    return {
        "assessments": key,
        **found,
        **cost,
        "spent_usd": purse.before + purse.spent,
        "told": [told(each) for each in assessments if each.reason or each.disagreements],
    }


def measured(stage: str, figures: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics of a stage; what was not measured is absent."""
    return {f"{stage}/{name}": value for name, value in figures.items() if value is not None}


def told(assessment: Assessment) -> dict[str, Any]:
    """A row of the table that people see."""
    return {
        "task": assessment.task_id,
        "verdict": str(assessment.verdict),
        "score": assessment.score,
        "reason": assessment.reason,
        "disagreements": "; ".join(assessment.disagreements),
    }
