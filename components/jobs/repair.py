"""Fourth stage of an audited pool: rewrites the instructions of tasks that a better one would make acceptable."""

from __future__ import annotations

import shutil
from typing import Any

from components.curation.quality import Verdict, repair, repairable
from components.jobs.job import Job, main
from components.jobs.judging import accepted, ask, assessments_of, audit_config, measured
from components.naming import curated_keys
from components.pool import write_index


def stage(job: Job) -> dict[str, Any]:
    """Result: {"repaired", "repairs", "mended", "failed", "hopeless", "spent_usd"}, and what was asked."""
    config = audit_config(job)
    assessments = assessments_of(job, "assessments")
    pairs = [(subject, assessments[subject.task.ref.task_id]) for subject in accepted(job, "train")]
    wanted = [pair for pair in pairs if repairable(pair[1], config)]
    refused = [each for _, each in pairs if each.verdict in (Verdict.BORDERLINE, Verdict.REJECTED)]
    folder = job.folder / "repaired"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    repairs, purse = ask(job, lambda endpoint, purse: repair(wanted, endpoint, job.store, purse, config, folder))
    tree, listing = curated_keys(job.campaign, "repair")
    refs = [each.repaired for each in repairs if each.repaired is not None]
    if refs:
        write_index(folder, refs)
    job.store.put_tree(tree, folder)
    job.store.put_json(listing, [each.to_json() for each in repairs])
    found = {"mended": len(refs), "failed": len(repairs) - len(refs), "hopeless": len(refused) - len(wanted)}
    job.commit(job.stage, 0, measured(job.stage, {**found, **purse.to_json()}), total=1)
    return {
        "repaired": tree,
        "repairs": listing,
        **found,
        **purse.to_json(),
        "spent_usd": purse.before + purse.spent,
    }


if __name__ == "__main__":
    main(stage)
