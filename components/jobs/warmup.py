"""The critic's warm-up: RL on a pool of its own, of which only the critic's weights are kept (paper 4.5).

A critic that begins with a head of zeros explains nothing of the returns for many steps, and its errors are what the
actor is trained on meanwhile. Here it sees the trials of the same policy first. The actor that was trained beside it is
thrown away, and so are both optimizers: RL begins with the actor it would have begun with, and with fresh moments and a
fresh schedule for both.
"""

from __future__ import annotations

import shutil
from typing import Any

from components.jobs.job import Job, main
from components.jobs.leg import Course, stepped, totals
from components.naming import critic_key


def stage(job: Job) -> dict[str, Any]:
    """Result: {"critic", "step", "metrics", "launched", "cancelled"}; `critic` is a Hugging Face folder."""
    warmup = job.config.ppo.warmup
    assert warmup is not None, "the warm-up stage runs only when the configuration asks for it"
    course = Course("warmup", "warmup", total=warmup.steps)
    key = critic_key(job.campaign)
    with stepped(job, course, 0, warmup.steps) as trainer:
        folder = job.folder / "critic"
        trainer.save_hf(folder, what="critic")
        job.store.put_tree(key, folder)
        shutil.rmtree(folder)
    return {"critic": key, "step": warmup.steps, **totals(job, course, 0, warmup.steps)}


if __name__ == "__main__":
    main(stage)
