"""Makes the pool in one job: generated or imported tasks, of which those are admitted that executed as they should.

With `pool.audit` the stages are jobs of their own instead: aggregate, gates, audit, repair, reaudit, select.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.curation import Candidate, admit, assertion_statistics
from components.jobs.gathering import Verdicts, digest, gated, gather, parts, require_enough
from components.jobs.job import Job, main
from components.naming import pool_key
from components.pool import Pool, choose


def stage(job: Job) -> dict[str, Any]:
    """Result: {"pool", "digest", "accepted", "rejected", "faults", "rejections", "flags", "assertions"} and the size of
    each part by its name. `assertions` counts those of the tasks to train on, and tells the scale that they imply.

    The pool holds `train` and `heldout`; and `warmup`, further tasks of the training split, when the critic needs it.
    """
    folder = job.folder / "pool"
    verdict = Verdicts()
    pools = gather(job, folder, parts(job.config), verdict)
    found = gated(job, pools, verdict)
    pools = {name: admit(pool, found[name]) for name, pool in pools.items()}
    if job.config.pool.imported is not None:
        pools = _chosen(job, folder, pools, verdict)
    key = pool_key(job.campaign)
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
    return {
        "pool": key,
        "digest": digest(pools["train"]),
        "assertions": assertion_statistics([Candidate.measured(ref) for ref in pools["train"].refs]),
        **verdict.told(),
        **{name: len(pool) for name, pool in pools.items()},
    }


def _chosen(job: Job, folder: Path, admitted: Mapping[str, Pool], verdict: Verdicts) -> dict[str, Pool]:
    """What was admitted is trained on, warmed up on and held out, by a seeded choice."""
    pools, wanted = dict(admitted), parts(job.config)
    if "warmup" in wanted:
        _, passed_over, count = wanted["warmup"]
        pools["warmup"] = choose(pools["train"], folder / "warmup", seed=job.config.seed, skip=passed_over, count=count)
    for name in ("heldout", "train"):
        count = wanted[name][2]
        pools[name] = choose(pools[name], folder / name, seed=job.config.seed, skip=0, count=count)
    require_enough(job.config, {name: len(pool) for name, pool in pools.items()}, verdict.left_out)
    return pools


if __name__ == "__main__":
    main(stage)
