"""Second stage of an audited pool: executes every candidate."""

from __future__ import annotations

from typing import Any

from components.errors import TaskError
from components.jobs.gathering import Verdicts, gated
from components.jobs.job import Job, main
from components.naming import curated_keys
from components.pool import Pool


def stage(job: Job) -> dict[str, Any]:
    """Result: {"gates", "accepted", "rejected", "faults", "rejections"}; `gates` holds every task's evidence.

    There is none while the infrastructure keeps tasks from having evidence. `faults` are those that tasks bring about.
    """
    folder = job.store.tree(job.inputs["candidates"])
    verdict = Verdicts()
    found = gated(job, {name: Pool(folder / name) for name in ("heldout", "train")}, verdict)
    if none := [name for name, gates in found.items() if not gates.accepted]:
        reasons = [f"{each['task']}: {each['reason']}: {each['detail']}" for each in verdict.rejections[:10]]
        raise TaskError("pool", [f"no task of {', '.join(none)} was accepted", *reasons])
    (key,) = curated_keys(job.campaign, "gates")
    results = {name: [result.to_json() for result in gates.results.values()] for name, gates in found.items()}
    faults = {task: why for gates in found.values() for task, why in gates.faults.items()}
    job.store.put_json(key, {"results": results, "faults": faults})
    told = verdict.told()
    counts = {name: told[name] for name in ("accepted", "rejected", "faults")}
    job.commit(job.stage, 0, {f"gates/{name}": count for name, count in counts.items()}, total=1)
    return {"gates": key, **told}


if __name__ == "__main__":
    main(stage)
