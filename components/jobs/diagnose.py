"""Diagnoses a campaign from its committed records and evaluations: findings, figures, a report."""

from __future__ import annotations

from typing import Any

from components.diagnostics import Evaluation, diagnose, figures, render
from components.jobs.job import Job, log, main

STAGE = "diagnose"


def stage(job: Job) -> dict[str, Any]:
    """Result: {"report", "figures", "verdict", "findings"}; `report` and `figures` are store keys."""
    records = list(job.records("rl"))
    evaluations = [
        Evaluation(name=label, step=result["step"], score=result["score"])
        for label, result in job.inputs["results"].items()
    ]
    diagnosis = diagnose(records, evaluations)
    log.info("verdict: %s", diagnosis.verdict)
    keys = []
    for name, data in figures(records, evaluations).items():
        keys.append(job.key(STAGE, "figures", f"{name}.png"))
        job.store.put_bytes(keys[-1], data)
    report = job.key(STAGE, "report.md")
    job.store.put_bytes(report, render(f"Diagnosis of {job.campaign}", diagnosis, records, evaluations).encode())
    findings = [finding.to_json() for finding in diagnosis.findings]
    return {"report": report, "figures": keys, "verdict": diagnosis.verdict, "findings": findings}


if __name__ == "__main__":
    main(stage)
