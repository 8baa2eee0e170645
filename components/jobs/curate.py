"""Makes the pool: generated tasks, of which only those that executed as they should are admitted."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections import Counter
from typing import Any

from components.curation import Audit, GateResult, admit, audit
from components.jobs.job import Job, log, main
from components.pool import Pool, Split, build_pool
from components.sandbox import open_backend

CONCURRENCY = 8
"""Boxes at once. Gates are bound by the processor; more boxes only wait for each other."""
REPORT_EVERY = 200


def stage(job: Job) -> dict[str, Any]:
    """Result: {"pool", "digest", "accepted", "rejected", "train", "heldout", "rejections"}."""
    config = job.config.pool
    folder = job.folder / "pool"
    counts = {Split.TRAIN: config.train_tasks, Split.HELDOUT: config.heldout_tasks}
    totals: Counter[str] = Counter()
    rejections: list[dict[str, str]] = []
    pools: dict[str, Pool] = {}
    for split, count in counts.items():
        target = folder / split.value
        pool = build_pool(config, split, seed=job.config.seed, count=count, folder=target)
        log.info("%s: %d tasks written, gates begin", split.value, len(pool))
        verdict = asyncio.run(_gates(job, pool, split))
        pools[split.value] = admit(pool, verdict)
        totals.update(verdict.summary())
        rejections += [
            {"task": result.task_id, "reason": str(result.rejection), "detail": result.detail}
            for result in verdict.rejected
        ]
        log.info("%s: %d accepted, %d rejected", split.value, len(verdict.accepted), len(verdict.rejected))
    key = job.key("pool")
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
    return {
        "pool": key,
        "digest": _digest(pools[Split.TRAIN.value]),
        "accepted": totals["accepted"],
        "rejected": totals["rejected"],
        "faults": totals["faults"],
        "rejections": rejections,
        **{name: len(pool) for name, pool in pools.items()},
    }


def _digest(pool: Pool) -> str:
    """Names the content of a pool: equal tasks, equal digest."""
    return hashlib.sha256("".join(sorted(ref.digest for ref in pool.refs)).encode()).hexdigest()[:16]


async def _gates(job: Job, pool: Pool, split: Split) -> Audit:
    done = 0

    def tell(result: GateResult) -> None:
        nonlocal done
        done += 1
        if done % REPORT_EVERY == 0:
            log.info("gates: %s: %d of %d tasks", split.value, done, len(pool))

    backend = await open_backend(job.config.sandbox, job.folder)
    try:
        return await audit(
            pool,
            backend,
            config=job.config.pool,
            sandbox=job.config.sandbox,
            journal=job.folder / f"gates-{split.value}.jsonl",
            concurrency=CONCURRENCY,
            on_result=tell,
        )
    finally:
        await backend.close()


if __name__ == "__main__":
    main(stage)
