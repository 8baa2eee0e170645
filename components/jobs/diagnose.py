"""Diagnoses a campaign from its committed records and evaluations: findings, figures, a report."""

from __future__ import annotations

from typing import Any

from components.diagnostics import Evaluation, diagnose, figures, page, render
from components.jobs.job import Job, log, main

STAGE = "diagnose"


def stage(job: Job) -> dict[str, Any]:
    """Result: {"report", "page", "figures", "verdict", "severity", "findings"}; the first three are store keys.

    Inputs: `results`, the evaluations by label; `through`, how many steps are looked at (None for all that are there);
    `before`, how many the report before this one had looked at (0 when it is the first).
    """
    through, before = job.inputs["through"], job.inputs["before"]
    records = [record for record in job.records("rl") if through is None or record["step"] < through]
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
    text = render(f"Diagnosis of {name}", diagnosis, records, evaluations, before=earlier)
    folder = (STAGE,) if through is None else (STAGE, f"step-{through:06d}")
    keys = [job.key(*folder, "figures", f"{figure}.png") for figure in drawn]
    for key, data in zip(keys, drawn.values(), strict=True):
        job.store.put_bytes(key, data)
    report, whole = job.key(*folder, "report.md"), job.key(*folder, "report.html")
    job.store.put_bytes(report, text.encode())
    job.store.put_bytes(whole, page(f"Diagnosis of {name}", text, drawn).encode())
    return {
        "report": report,
        "page": whole,
        "figures": keys,
        "verdict": diagnosis.verdict,
        "severity": diagnosis.severity.name.lower(),
        "findings": [finding.to_json() for finding in diagnosis.findings],
    }


if __name__ == "__main__":
    main(stage)
