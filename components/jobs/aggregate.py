"""First stage of an audited pool: gathers the tasks, with their lineage, and leaves out what may not be trained on."""

from __future__ import annotations

import shutil
from typing import Any

from components.jobs.gathering import Verdicts, gather, parts
from components.jobs.job import Job, main
from components.naming import curated_keys


def stage(job: Job) -> dict[str, Any]:
    """Result: {"candidates", "left_out", "rejected", "rejections"} and the size of `train` and `heldout`.

    `train` holds what training and the critic's warm-up are selected from.
    """
    wanted = parts(job.config)
    if "warmup" in wanted:
        split, skip, count = wanted.pop("warmup")
        wanted["train"] = (split, 0, skip + count)
    folder, verdict = job.folder / "candidates", Verdicts()
    pools = gather(job, folder, wanted, verdict)
    key, listing = curated_keys(job.campaign, "aggregate")
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
    sizes = {name: len(pool) for name, pool in pools.items()}
    job.store.put_json(listing, verdict.rejections)
    job.commit(job.stage, 0, {f"aggregate/{name}": size for name, size in sizes.items()}, total=1)
    return {
        "candidates": key,
        "left_out": listing,
        "rejected": len(verdict.rejections),
        "rejections": verdict.rejections,
        **sizes,
    }


if __name__ == "__main__":
    main(stage)
