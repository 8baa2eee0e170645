"""Fifth stage of an audited pool: repaired tasks are audited as if they were new.

The gates are not run again: what they saw depends on nothing that has changed. What a new instruction repeats of a
benchmark, or of a held-out task, is looked for again, before the judge is asked.
"""

from __future__ import annotations

from typing import Any

from components.curation import CONTAMINATED, Benchmark, contaminations
from components.curation.quality import Assessment, Subject, Verdict
from components.jobs.gathering import benchmarks_of
from components.jobs.job import Job, main
from components.jobs.judging import audited, repaired


def stage(job: Job) -> dict[str, Any]:
    """Result: as that of the audit."""
    subjects = repaired(job)
    refused = _contaminated(job, subjects)
    names = {each.task_id for each in refused}
    return audited(job, [each for each in subjects if each.task.ref.task_id not in names], refused)


def _contaminated(job: Job, subjects: list[Subject]) -> list[Assessment]:
    config = job.config.pool.imported
    if config is None:
        return []
    benchmarks = [*benchmarks_of(config.benchmarks), Benchmark(job.store.tree(job.inputs["candidates"]) / "heldout")]
    found = contaminations([each.task.path for each in subjects], benchmarks, config.jaccard)
    digests = {each.task.ref.task_id: each.task.ref.digest for each in subjects}
    return [
        Assessment(
            task, digests[task], Verdict.REJECTED, cause=CONTAMINATED, reason="; ".join(str(each) for each in evidence)
        )
        for task, evidence in sorted(found.items())
    ]


if __name__ == "__main__":
    main(stage)
