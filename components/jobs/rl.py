"""One leg of RL: `rl.leg_steps` steps, one checkpoint at its end."""

from __future__ import annotations

from typing import Any

from components.jobs.checkpoints import publish_checkpoint
from components.jobs.job import Job, main
from components.jobs.leg import Course, state_key, stepped, totals


def leg(job: Job) -> dict[str, Any]:
    """The stage. Result: {"checkpoint", "state", "step", "metrics", "launched", "cancelled"}."""
    steps = job.config.rl.leg_steps
    course = Course("rl", "train", total=job.config.rl.legs * steps)
    first = int(job.inputs["first_step"])
    last = first + steps
    key = job.key(course.stage, "legs", job.index, "checkpoint")
    with stepped(job, course, first, last) as trainer:
        publish_checkpoint(job, trainer, key, tokenizer_from=job.store.tree(job.inputs["checkpoint"]))
    state = state_key(job, course.stage, last - 1)
    return {"checkpoint": key, "state": state, "step": last, **totals(job, course, first, last)}


if __name__ == "__main__":
    main(leg)
