"""Makes the pool: generated or imported tasks, of which only those that executed as they should are admitted."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from components.config import CampaignConfig
from components.curation import Audit, Benchmark, GateResult, admit, audit, screen
from components.errors import TaskError
from components.jobs.job import Job, log, main
from components.pool import LeftOut, Pool, Split, build_pool, choose, import_tasks, index_folder
from components.sandbox import open_backend

CONCURRENCY = 8
"""Boxes at once. Gates are bound by the processor; more boxes only wait for each other."""
REPORT_EVERY = 200


def stage(job: Job) -> dict[str, Any]:
    """Result: {"pool", "digest", "accepted", "rejected", "faults", "rejections"} and the size of each part by its name.

    The pool holds `train` and `heldout`; and `warmup`, further tasks of the training split, when the critic needs it.
    """
    folder = job.folder / "pool"
    verdict = Verdicts()
    made = _generated(job, folder, verdict) if job.config.pool.imported is None else _imported(job, folder, verdict)
    key = job.key("pool")
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
    return {
        "pool": key,
        "digest": _digest(made["train"]),
        "accepted": verdict.totals["accepted"],
        "rejected": len(verdict.rejections),
        "faults": verdict.totals["faults"],
        "rejections": verdict.rejections,
        **{name: len(pool) for name, pool in made.items()},
    }


class Verdicts:
    """What became of all tasks: counts, and a reason for every one that is not in the pool."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.rejections: list[dict[str, str]] = []

    def add(self, audit: Audit) -> None:
        self.totals.update(audit.summary())
        self.leave_out(LeftOut(each.task_id, str(each.rejection), each.detail) for each in audit.rejected)

    def leave_out(self, tasks: Iterable[LeftOut]) -> None:
        self.rejections += [task.to_json() for task in tasks]


def _generated(job: Job, folder: Path, verdict: Verdicts) -> dict[str, Pool]:
    pools = {}
    for name, (split, skip, count) in _parts(job.config).items():
        seed = job.config.seed
        pool = build_pool(job.config.pool, split, seed=seed, skip=skip, count=count, folder=folder / name)
        log.info("%s: %d tasks written, gates begin", name, len(pool))
        pools[name] = _admitted(job, pool, name, verdict)
    return pools


def _parts(config: CampaignConfig) -> dict[str, tuple[Split, int, int]]:
    """Of each part of the pool: its split, how many of the split's tasks it passes over, and how many it takes."""
    train, heldout = config.pool.train_tasks, config.pool.heldout_tasks
    parts = {"train": (Split.TRAIN, 0, train), "heldout": (Split.HELDOUT, 0, heldout)}
    if config.ppo.warmup is not None:
        parts["warmup"] = (Split.TRAIN, train, config.ppo.warmup.tasks)
    return parts


def _imported(job: Job, folder: Path, verdict: Verdicts) -> dict[str, Pool]:
    """Tasks from elsewhere. What the gates admit is trained on, warmed up on and held out, by a seeded choice."""
    config, wanted = job.config.pool.imported, _parts(job.config)
    assert config is not None
    for name, sources in (("heldout", config.heldout), ("train", config.train)):
        verdict.leave_out(import_tasks(sources, folder / name))
    benchmarks = [Benchmark(Path(path)) for path in config.benchmarks]
    benchmarks.append(Benchmark(folder / "heldout"))
    verdict.leave_out(
        screen(folder / "train", benchmarks, jaccard=config.jaccard, near_duplicate=config.near_duplicate)
    )
    pools = {}
    for name in ("heldout", "train"):
        pool = index_folder(folder / name)
        log.info("%s: %d tasks imported, gates begin", name, len(pool))
        pools[name] = _admitted(job, pool, name, verdict)
    if "warmup" in wanted:
        _, passed_over, count = wanted["warmup"]
        pools["warmup"] = choose(pools["train"], folder / "warmup", seed=job.config.seed, skip=passed_over, count=count)
    for name in ("heldout", "train"):
        count = wanted[name][2]
        pools[name] = choose(pools[name], folder / name, seed=job.config.seed, skip=0, count=count)
    _require_enough(job.config, pools)
    return pools


def _require_enough(config: CampaignConfig, pools: Mapping[str, Pool]) -> None:
    """Refuses an imported pool that its campaign cannot be run on, before anything is trained."""
    group = config.rollout.batch // config.ppo.group_size
    needed = {"train": group, "warmup": group, "heldout": max(config.evaluation.trials, config.evaluation.leg_trials)}
    few = [
        f"{name}: {len(pool)} tasks were admitted, a step or an evaluation needs {needed[name]}"
        for name, pool in pools.items()
        if len(pool) < needed[name]
    ]
    if few:
        raise TaskError("pool.imported", few)


def _admitted(job: Job, pool: Pool, name: str, verdict: Verdicts) -> Pool:
    """What the gates admit of `pool`."""
    found = asyncio.run(_gates(job, pool, name))
    verdict.add(found)
    log.info("%s: %d accepted, %d rejected", name, len(found.accepted), len(found.rejected))
    return admit(pool, found)


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
