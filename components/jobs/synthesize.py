"""Grows the training tasks of a campaign's pool by recursive synthesis."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path
from typing import Any

from components.jobs.job import Job, main
from components.pool import Pool
from components.sandbox import open_backend
from components.synthesis import STATE, RoundReport, World, open_proposer, open_run, synthesize

STAGE = "synthesize"
CONCURRENCY = 8
"""Boxes at once. Gates are bound by the processor; more boxes only wait for each other."""


def stage(job: Job) -> dict[str, Any]:
    """Result: {"grown", "digest", "tasks", "rounds", "rejections"}, and what a model's answers cost: {"model"}.

    `grown` is the store key of a folder of task directories with their index, which `pool.imported` takes.
    """
    source = Pool(job.store.tree(job.inputs["pool"]) / "train")
    folder = job.folder / "grown"
    run = open_run(source.folder, folder, job.config.synthesis, job.config.seed)
    reports, spent = asyncio.run(_grow(job, run, folder))
    grown = Pool(folder)
    key = job.key("grown")
    job.store.put_tree(key, _without_state(folder))
    rejected = [fate.to_json() for report in reports for fate in report.fates if fate.reason]
    return {
        "grown": key,
        "digest": hashlib.sha256("".join(ref.digest for ref in grown.refs).encode()).hexdigest()[:16],
        "tasks": len(grown),
        "rounds": [report.row() for report in reports],
        "rejections": rejected,
        **({} if spent is None else {"model": spent}),
    }


async def _grow(job: Job, pool: Pool, folder: Path) -> tuple[list[RoundReport], dict[str, Any] | None]:
    config = job.config
    known = job.committed(STAGE)

    def tell(report: RoundReport) -> None:
        if report.round - 1 not in known:
            metrics = {f"synthesis/{name}": value for name, value in report.metrics().items()}
            job.commit(STAGE, report.round - 1, metrics, total=config.synthesis.rounds)

    async with open_proposer(config.synthesis, job.store) as proposer:
        backend = await open_backend(config.sandbox, job.folder)
        world = World(backend, config.sandbox, config.pool, CONCURRENCY, proposer)
        try:
            reports = await synthesize(pool, folder, world, config.synthesis, seed=config.seed, on_round=tell)
        finally:
            await backend.close()
        return reports, None if proposer is None else proposer.purse.to_json()


def _without_state(folder: Path) -> Path:
    """A copy of the grown pool alone: the run's state stays where it is, for an attempt after this one."""
    alone = folder.with_name("alone") / folder.name
    shutil.rmtree(alone.parent, ignore_errors=True)
    shutil.copytree(folder, alone, symlinks=True, ignore=shutil.ignore_patterns(STATE))
    return alone


if __name__ == "__main__":
    main(stage)
