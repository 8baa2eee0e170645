"""Makes the pool: generated tasks, of which only those that executed as they should are admitted."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections import Counter
from typing import Any

from components.config import CampaignConfig
from components.curation import Audit, GateResult, admit, audit
from components.jobs.job import Job, log, main
from components.pool import Pool, Split, build_pool
from components.sandbox import open_backend

CONCURRENCY = 8
"""Boxes at once. Gates are bound by the processor; more boxes only wait for each other."""
REPORT_EVERY = 200


def stage(job: Job) -> dict[str, Any]:
    """Result: {"pool", "digest", "accepted", "rejected", "faults", "rejections"} and the size of each part by its name.

    The pool holds `train` and `heldout`; and `warmup`, further tasks of the training split, when the critic needs it.
    """
    folder = job.folder / "pool"
    totals: Counter[str] = Counter()
    rejections: list[dict[str, str]] = []
    pools: dict[str, Pool] = {}
    for name, (split, skip, count) in _parts(job.config).items():
        seed = job.config.seed
        pool = build_pool(job.config.pool, split, seed=seed, skip=skip, count=count, folder=folder / name)
        log.info("%s: %d tasks written, gates begin", name, len(pool))
        verdict = asyncio.run(_gates(job, pool, name))
        pools[name] = admit(pool, verdict)
        totals.update(verdict.summary())
        rejections += [
            {"task": result.task_id, "reason": str(result.rejection), "detail": result.detail}
            for result in verdict.rejected
        ]
        log.info("%s: %d accepted, %d rejected", name, len(verdict.accepted), len(verdict.rejected))
    key = job.key("pool")
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
    return {
        "pool": key,
        "digest": _digest(pools["train"]),
        "accepted": totals["accepted"],
        "rejected": totals["rejected"],
        "faults": totals["faults"],
        "rejections": rejections,
        **{name: len(pool) for name, pool in pools.items()},
    }


def _parts(config: CampaignConfig) -> dict[str, tuple[Split, int, int]]:
    """Of each part of the pool: its split, how many of the split's tasks it passes over, and how many it takes."""
    train, heldout = config.pool.train_tasks, config.pool.heldout_tasks
    parts = {"train": (Split.TRAIN, 0, train), "heldout": (Split.HELDOUT, 0, heldout)}
    if config.ppo.warmup is not None:
        parts["warmup"] = (Split.TRAIN, train, config.ppo.warmup.tasks)
    return parts


def _digest(pool: Pool) -> str:
    """Names the content of a pool: equal tasks, equal digest."""
    return hashlib.sha256("".join(sorted(ref.digest for ref in pool.refs)).encode()).hexdigest()[:16]


async def _gates(job: Job, pool: Pool, name: str) -> Audit:
    done = 0

    def tell(result: GateResult) -> None:
        nonlocal done
        done += 1
        if done % REPORT_EVERY == 0:
            log.info("gates: %s: %d of %d tasks", name, done, len(pool))

    backend = await open_backend(job.config.sandbox, job.folder)
    try:
        return await audit(
            pool,
            backend,
            config=job.config.pool,
            sandbox=job.config.sandbox,
            journal=job.folder / f"gates-{name}.jsonl",
            concurrency=CONCURRENCY,
            on_result=tell,
        )
    finally:
        await backend.close()


if __name__ == "__main__":
    main(stage)
