"""Supervised fine-tuning of a checkpoint on better demonstrations, or on trials that passed."""

from __future__ import annotations

from typing import Any

from components.jobs import supervised
from components.jobs.job import Job, main


def stage(job: Job) -> dict[str, Any]:
    """Result: see `supervised.train`."""
    checkpoint = job.store.tree(job.inputs["checkpoint"])
    return supervised.train(job, job.config.sft, start=checkpoint, tokenizer_from=checkpoint)


if __name__ == "__main__":
    main(stage)
