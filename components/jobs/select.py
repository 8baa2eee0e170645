"""Last stage of an audited pool: the best of what was accepted, under caps, and what the pool is made of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.curation import (
    FAULT,
    Candidate,
    GateResult,
    assertion_statistics,
    composition,
    select,
    with_assertions,
)
from components.curation.quality import Assessment, Verdict
from components.jobs.gathering import digest, parts, require_enough
from components.jobs.job import Job, log, main
from components.jobs.judging import accepted, assessments_of, audit_config, measured, repaired
from components.naming import curated_keys
from components.pool import LeftOut, Pool, Task, choose, write_index


def stage(job: Job) -> dict[str, Any]:
    """Result: that of `components.jobs.curate`, with {"composition", "assertions", "selection", "spent_usd"}.

    `train` holds the best tasks, best first, and `warmup` those that follow; `heldout` is a seeded choice.
    """
    folder = job.folder / "pool"
    shutil.rmtree(folder, ignore_errors=True)
    tasks, refused = _audited(job)
    wanted = {name: count for name, (_, _, count) in parts(job.config).items()}
    heldout = [_with_evidence(each.task, each.evidence) for each in accepted(job, "heldout")]
    count = wanted["train"] + wanted.get("warmup", 0)
    chosen = select([Candidate.of(task, quality) for task, quality in tasks], count, audit_config(job).selection)
    names = [candidate.task_id for candidate in chosen.selected]
    shares = {"train": names[: wanted["train"]], "warmup": names[wanted["train"] :]}
    sizes: dict[str, int] = {name: len(shares[name]) for name in shares if name in wanted}
    sizes["heldout"] = min(wanted["heldout"], len(heldout))
    require_enough(job.config, sizes, [*refused, *chosen.left_out])
    by_id, qualities = {task.ref.task_id: task for task, _ in tasks}, {t.ref.task_id: q for t, q in tasks}
    pools = {name: _written([by_id[each] for each in share], folder / name) for name, share in shares.items() if share}
    held = _written(heldout, folder / "heldout")
    choose(held, held.folder, seed=job.config.seed, skip=0, count=wanted["heldout"])
    rejections = _reasons(job, [*refused, *chosen.left_out])
    statistics = assertion_statistics(chosen.selected)
    table = composition(chosen.selected)
    scale, implied = job.config.reward.scale, statistics["implied_scale"]
    log.info("reward.scale is %g; the 90th percentile of assertions asks for %s", scale, implied)
    key, listing = curated_keys(job.campaign, "select")
    rows = [{"task": name, "quality": qualities[name], "category": by_id[name].ref.category} for name in names]
    job.store.put_json(listing, {"selected": rows, "left_out": rejections, "composition": table, **statistics})
    job.store.put_tree(key, folder)
    shutil.rmtree(folder)
    faults = sum(each["reason"] == FAULT for each in rejections)
    figures: dict[str, float | None] = {
        **sizes,
        **{f"assertions_{name}": value for name, value in statistics.items()},
        "rejected": len(rejections),
    }
    job.commit(job.stage, 0, measured(job.stage, figures), total=1)
    return {
        "pool": key,
        "digest": digest(pools["train"]),
        "accepted": len(names) + len(heldout),
        "rejected": len(rejections) - faults,
        "faults": faults,
        "rejections": rejections,
        **sizes,
        "selection": listing,
        "composition": table,
        "assertions": {**statistics, "reward_scale": scale},
        "spent_usd": job.inputs["spent_usd"],
    }


def _audited(job: Job) -> tuple[list[tuple[Task, float]], list[LeftOut]]:
    """The accepted tasks with their scores and measured assertions, and the reasons of the others."""
    first = assessments_of(job, "assessments")
    again = assessments_of(job, "reassessments") if "reassessments" in job.inputs else {}
    failed = {} if "repairs" not in job.inputs else _failed(job)
    subjects = {each.task.ref.task_id: each for each in accepted(job, "train")}
    if again:
        subjects |= {each.task.ref.task_id: each for each in repaired(job)}
    tasks, refused = [], []
    for name, subject in subjects.items():
        last = again.get(name, first[name])
        if last.verdict is Verdict.ACCEPTED:
            assert last.score is not None
            assert subject.evidence is not None
            ref = with_assertions(subject.task.ref, subject.evidence)
            tasks.append((replace(subject.task, ref=ref), last.score))
        else:
            refused.append(LeftOut(name, last.cause, _story(last, name in again, failed.get(name))))
    return tasks, refused


def _failed(job: Job) -> dict[str, str]:
    """Why a task that was to be repaired was not, by task."""
    return {each["task_id"]: each["reason"] for each in job.store.get_json(job.inputs["repairs"]) if each["reason"]}


def _story(last: Assessment, after_repair: bool, failed: str | None) -> str:
    told = f"after its instruction was repaired: {last.reason}" if after_repair else last.reason
    return f"{told}; not repaired: {failed}" if failed else told


def _written(tasks: Sequence[Task], folder: Path) -> Pool:
    for task in tasks:
        shutil.copytree(task.path, folder / task.ref.task_id, symlinks=True)
    return write_index(folder, [task.ref for task in tasks])


def _with_evidence(task: Task, evidence: GateResult | None) -> Task:
    assert evidence is not None, "what the gates accepted has evidence"
    return replace(task, ref=with_assertions(task.ref, evidence))


def _reasons(job: Job, last: Sequence[LeftOut]) -> list[dict[str, str]]:
    """Why each task is not in the pool, from the first stage to the last."""
    gates = job.store.get_json(job.inputs["gates"])
    results = [GateResult.from_json(each) for part in gates["results"].values() for each in part]
    rejected = [LeftOut(each.task_id, str(each.rejection), each.detail) for each in results if each.rejection]
    faults = [LeftOut(task, FAULT, why) for task, why in gates["faults"].items()]
    aggregated: list[dict[str, str]] = job.store.get_json(job.inputs["left_out"])
    return aggregated + [each.to_json() for each in (*rejected, *faults, *last)]


if __name__ == "__main__":
    main(stage)
