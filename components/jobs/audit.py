"""Third stage of an audited pool: a judge audits what the gates accepted for training."""

from __future__ import annotations

from typing import Any

from components.jobs.job import Job, main
from components.jobs.judging import accepted, audited


def stage(job: Job) -> dict[str, Any]:
    """Result: {"assessments", "spent_usd", "told"}, counts of verdicts and disagreements, and what was asked."""
    return audited(job, accepted(job, "train"))


if __name__ == "__main__":
    main(stage)
