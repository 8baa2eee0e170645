"""One leg of RL: `rl.leg_steps` steps, one checkpoint at its end."""

from __future__ import annotations

from typing import Any

from components.jobs.checkpoints import publish_checkpoint
from components.jobs.commits import state_key
from components.jobs.job import Job, main
from components.jobs.leg import Course, stepped, totals
from components.naming import leg_checkpoint_key

STAGE = "rl"


def leg(job: Job) -> dict[str, Any]:
    """The stage. Result: {"checkpoint", "state", "step", "metrics", "launched", "cancelled", "refused_states"}."""
    steps = job.config.rl.leg_steps
    course = Course(STAGE, "train", total=job.config.rl.legs * steps)
    first = int(job.inputs["first_step"])
    last = first + steps
    key = _checkpoint_key(job, job.index)
    with stepped(job, course, first, last, held=lambda: held(job, first)) as trainer:
        publish_checkpoint(job, trainer, key, tokenizer_from=job.store.tree(job.inputs["checkpoint"]))
    state = state_key(job, course.stage, last - 1)
    return {"checkpoint": key, "state": state, "step": last, **totals(job, course, first, last)}


def held(job: Job, first: int) -> set[int]:
    """Steps whose states are kept, whatever their age, while the leg that begins at `first` runs.

    Its own beginning, whose evaluation may still run, and the end of the leg with the best held-out pass rate.
    """
    found = {first - 1}
    best = best_leg(job) if job.config.checkpoints.keep_best else None
    return found if best is None else found | {best * job.config.rl.leg_steps - 1}


def best_leg(job: Job) -> int | None:
    """The leg whose checkpoint has the best held-out pass rate, the first of equals; None before any is evaluated."""
    legs = {_checkpoint_key(job, number): number for number in range(1, job.config.rl.legs + 1)}
    evaluations = job.key("jobs", f"{job.campaign}-evaluate-")
    keys = [key for key in job.store.list(job.key("jobs")) if key.startswith(evaluations)]
    results = [job.store.get_json(key) for key in keys if key.endswith("/result.json")]
    rates = {
        legs[result["checkpoint"]]: result["pass_rate"]
        for result in results
        if result["checkpoint"] in legs and result["pass_rate"] is not None
    }
    return max(sorted(rates), key=rates.__getitem__, default=None)


def _checkpoint_key(job: Job, number: int) -> str:
    return leg_checkpoint_key(job.campaign, number)


if __name__ == "__main__":
    main(leg)
