"""The first two stages of curation, for the jobs that make a pool: tasks are gathered, and the gates are run."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from components.config import CampaignConfig
from components.curation import FAULT, Audit, Benchmark, GateResult, audit, screen
from components.errors import InfraFault, TaskError
from components.jobs.job import Job, log
from components.pool import LeftOut, Pool, Split, build_pool, import_tasks, index_folder
from components.sandbox import open_backend

CONCURRENCY = 8
"""Boxes at once. Gates are bound by the processor; more boxes only wait for each other."""
REPORT_EVERY = 200
TOLD = 10
"""Reasons in a message; a log has room for all."""


class Verdicts:
    """What became of all tasks: counts, a reason for every one that is not in the pool, and flags of others."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.rejections: list[dict[str, str]] = []
        self.flags: list[dict[str, str]] = []

    def add(self, audit: Audit) -> None:
        self.totals.update(audit.summary())
        self.leave_out(LeftOut(each.task_id, str(each.rejection), each.detail) for each in audit.rejected)
        self.leave_out(LeftOut(task, FAULT, why) for task, why in audit.faults.items())
        self.flags += [
            {"task": each.task_id, "kind": flag.kind, "detail": flag.detail}
            for each in audit.accepted
            for flag in each.flags
        ]

    def leave_out(self, tasks: Iterable[LeftOut]) -> None:
        self.rejections += [task.to_json() for task in tasks]

    @property
    def left_out(self) -> list[LeftOut]:
        """Every task that is not in the pool, with its reason."""
        return [LeftOut(**each) for each in self.rejections]

    def told(self) -> dict[str, Any]:
        """The counts, reasons and flags of a job's result."""
        return {
            "accepted": self.totals["accepted"],
            "rejected": len(self.rejections) - self.totals["faults"],
            "faults": self.totals["faults"],
            "rejections": self.rejections,
            "flags": self.flags,
        }


def parts(config: CampaignConfig) -> dict[str, tuple[Split, int, int]]:
    """Of each part of the pool: its split, how many of the split's tasks it passes over, and how many it takes."""
    train, heldout = config.pool.train_tasks, config.pool.heldout_tasks
    found = {"train": (Split.TRAIN, 0, train), "heldout": (Split.HELDOUT, 0, heldout)}
    if config.ppo.warmup is not None:
        found["warmup"] = (Split.TRAIN, train, config.ppo.warmup.tasks)
    return found


def gather(job: Job, folder: Path, wanted: Mapping[str, tuple[Split, int, int]], verdict: Verdicts) -> dict[str, Pool]:
    """Writes the tasks that the gates are to see into `folder`, a subfolder a part.

    Generated tasks are as many as `wanted`; of imported ones, all that may be trained on or held out.
    """
    config = job.config.pool.imported
    if config is None:
        pools = {}
        for name, (split, skip, count) in wanted.items():
            seed = job.config.seed
            pools[name] = build_pool(job.config.pool, split, seed=seed, skip=skip, count=count, folder=folder / name)
            log.info("%s: %d tasks written", name, len(pools[name]))
        return pools
    for name, sources in (("heldout", config.heldout), ("train", config.train)):
        verdict.leave_out(import_tasks(sources, folder / name))
    benchmarks = [*benchmarks_of(config.benchmarks), Benchmark(folder / "heldout")]
    verdict.leave_out(
        screen(folder / "train", benchmarks, jaccard=config.jaccard, near_duplicate=config.near_duplicate)
    )
    pools = {name: index_folder(folder / name) for name in ("heldout", "train")}
    for name, pool in pools.items():
        log.info("%s: %d tasks imported", name, len(pool))
    return pools


def benchmarks_of(folders: Iterable[str]) -> list[Benchmark]:
    """The suites that training must not repeat."""
    return [Benchmark(Path(folder)) for folder in folders]


def gated(job: Job, pools: Mapping[str, Pool], verdict: Verdicts) -> dict[str, Audit]:
    """What the gates say of every task of each part.

    Raises:
        InfraFault: tasks of some parts have no result; all others have theirs in the job's folder, for the next try.
    """
    found: dict[str, Audit] = {}
    faults: dict[str, InfraFault] = {}
    for name, pool in pools.items():
        log.info("%s: gates begin", name)
        try:
            found[name] = asyncio.run(_gates(job, pool, name))
        except InfraFault as fault:
            faults[name] = fault
            continue
        verdict.add(found[name])
        log.info("%s: %d accepted, %d rejected", name, len(found[name].accepted), len(found[name].rejected))
    if faults:
        told = "; ".join(f"{name}: {fault.detail}" for name, fault in faults.items())
        raise InfraFault(next(iter(faults.values())).cause, told)
    return found


def require_enough(config: CampaignConfig, sizes: Mapping[str, int], reasons: Iterable[LeftOut] = ()) -> None:
    """Refuses a pool that its campaign cannot be run on, before anything is trained.

    Raises:
        TaskError: with the numbers, and the first of the `reasons` why there are no more. The log has all of them, for
            a stage that is refused leaves no result.
    """
    group = config.rollout.batch // config.ppo.group_size
    needed = {"train": group, "warmup": group, "heldout": max(config.evaluation.trials, config.evaluation.leg_trials)}
    few = [
        f"{name}: {size} tasks were admitted, a step or an evaluation needs {needed[name]}"
        for name, size in sizes.items()
        if size < needed[name]
    ]
    if few:
        told = [f"{each.task}: {each.reason}: {each.detail}" for each in reasons]
        for line in told:
            log.info("left out: %s", line)
        raise TaskError("pool", few + told[:TOLD])


def digest(pool: Pool) -> str:
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
