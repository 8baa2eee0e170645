"""Flow task: what happened in a campaign, and whether to worry."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact

from components.config import CampaignConfig
from tasks import tracking
from tasks.campaign import campaign_name
from tasks.drive import STAGE, drive
from tasks.results import Diagnosis, Score


@task(name="diagnose", **STAGE)
def diagnose(config: CampaignConfig, scores: Sequence[Score]) -> Diagnosis:
    """Reads the campaign's records and evaluations; the report becomes a Prefect artifact, the figures MLflow's."""
    results = {score.label: {**score.result, "step": score.step} for score in scores}
    driven = drive(config, "diagnose", 0, {"results": results})
    result, name = driven.result, campaign_name(config)
    report = driven.store.get_bytes(result["report"])
    create_markdown_artifact(report.decode(), key=f"{name}-diagnosis", description=f"verdict: {result['verdict']}")
    tracker = tracking.tracker()
    tracker.log_bytes(driven.parent, "diagnosis/report.md", report)
    for key in result["figures"]:
        tracker.log_bytes(driven.parent, f"figures/{key.rpartition('/')[2]}", driven.store.get_bytes(key))
    tracker.log_tags(driven.parent, {"longshell.verdict": str(result["verdict"])})
    tracker.end(driven.run)
    if url := tracking.link(driven.parent):
        create_link_artifact(url, link_text="MLflow charts", key=f"{name}-mlflow")
    return Diagnosis(result["report"], tuple(result["figures"]), result["verdict"], tuple(result["findings"]))
