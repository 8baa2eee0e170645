"""Diagnoses a campaign from its committed records and evaluations: findings, figures, a report."""

from __future__ import annotations

import time
from typing import Any

from components.diagnostics import Evaluation, diagnose, figures, page, render
from components.diagnostics.trajectory import (
    Chosen,
    beside,
    chosen,
    decoder,
    html,
    rows,
    section,
    stored,
    unread,
    view,
)
from components.errors import LongshellError
from components.jobs.job import Job, log, main
from components.naming import batch_key, diagnosis_key, page_of

RL = "rl"


def stage(job: Job) -> dict[str, Any]:
    """Result: {"report", "page", "figures", "verdict", "severity", "findings", "trajectories", "steps", "told_s"}.

    The first three are store keys; `steps` is how many were looked at, and `told_s` when, in seconds since 1970.
    `trajectories` are trials of the steps since `before` that a person should read: {"step", "reasons", "row", "batch",
    "page"}, the last two store keys; `page` is None where it could not be made.

    Inputs: `results`, the evaluations by label; `through`, how many steps are looked at (None for all that are there);
    `before`, how many the report before this one had looked at (0 when it is the first).
    """
    through, before = job.inputs["through"], job.inputs["before"]
    records = [record for record in job.records(RL) if through is None or record["step"] < through]
    evaluations = [
        Evaluation(name=label, step=result["step"], score=result["score"])
        for label, result in job.inputs["results"].items()
    ]
    diagnosis = diagnose(records, evaluations)
    log.info("verdict: %s", diagnosis.verdict)
    earlier = (
        diagnose(
            [record for record in records if record["step"] < before],
            [evaluation for evaluation in evaluations if evaluation.step <= before],
        )
        if before
        else None
    )
    name = job.campaign if through is None else f"{job.campaign} after step {through}"
    drawn = figures(records, evaluations)
    since = [record["step"] for record in records if record["step"] >= before]
    trials, problems = rows(job.store, job.campaign, since)
    for problem in problems:
        log.warning("trials that could not be looked at: %s", problem)
    read = chosen(trials)
    pages = {each.row.trial_id: _page(job, each, through) for each in read}
    text = render(f"Diagnosis of {name}", diagnosis, records, evaluations, before=earlier)
    if read:
        text += "\n" + section(read, beside(name for name, key in pages.items() if key))
    text += unread(problems)
    keys = [diagnosis_key(job.campaign, through, "figures", f"{figure}.png") for figure in drawn]
    for key, data in zip(keys, drawn.values(), strict=True):
        job.store.put_bytes(key, data)
    report, whole = (diagnosis_key(job.campaign, through, name) for name in ("report.md", "report.html"))
    job.store.put_bytes(report, text.encode())
    job.store.put_bytes(whole, page(f"Diagnosis of {name}", text, drawn).encode())
    return {
        "report": report,
        "page": whole,
        "figures": keys,
        "verdict": diagnosis.verdict,
        "severity": diagnosis.severity.name.lower(),
        "findings": [finding.to_json() for finding in diagnosis.findings],
        "trajectories": [
            {**each.to_json(), "batch": _batch(job, each.step), "page": pages[each.row.trial_id]} for each in read
        ],
        "steps": len(records),
        "told_s": time.time(),
    }


def _page(job: Job, each: Chosen, through: int | None) -> str | None:
    """Writes the page of a trial; its key, or None where it cannot be read, which is no reason to have no report."""
    trial = each.row.trial_id
    try:
        found = stored(job.store, _batch(job, each.step), trial)
        written = html(view(found, decoder(job.store, job.campaign)))
    except LongshellError as error:
        log.warning("trial %s has no page: %s", trial, error)
        return None
    key = diagnosis_key(job.campaign, through, *page_of(trial).split("/"))
    job.store.put_bytes(key, written.encode())
    return key


def _batch(job: Job, step: int) -> str:
    return batch_key(job.campaign, RL, step, "batches")


if __name__ == "__main__":
    main(stage)
