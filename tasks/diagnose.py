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
def diagnose(config: CampaignConfig, scores: Sequence[Score], leg: int | None = None) -> Diagnosis:
    """Reads the campaign's records and evaluations, up to the end of `leg` or all of them.

    The report becomes a Prefect artifact and, with its figures, a page among MLflow's artifacts.
    """
    results = {score.label: {**score.result, "step": score.step} for score in scores}
    steps = config.rl.leg_steps
    inputs = {
        "results": results,
        "through": None if leg is None else leg * steps,
        "before": ((leg or config.rl.legs) - 1) * steps,
    }
    driven = drive(config, "diagnose", leg or 0, inputs)
    result, name = driven.result, campaign_name(config)
    report = driven.store.get_bytes(result["report"])
    place = "diagnosis" if leg is None else f"diagnosis/leg-{leg}"
    key = f"{name}-diagnosis" if leg is None else f"{name}-diagnosis-leg-{leg}"
    create_markdown_artifact(report.decode(), key=key, description=f"verdict: {result['verdict']}")
    tracker = tracking.tracker()
    tracker.log_bytes(driven.parent, f"{place}/report.md", report)
    tracker.log_bytes(driven.parent, f"{place}/report.html", driven.store.get_bytes(result["page"]))
    if leg is None:
        for figure in result["figures"]:
            tracker.log_bytes(driven.parent, f"figures/{figure.rpartition('/')[2]}", driven.store.get_bytes(figure))
        tracker.end(driven.run)
        if url := tracking.link(driven.parent):
            create_link_artifact(url, link_text="MLflow charts", key=f"{name}-mlflow")
    tracker.log_tags(driven.parent, {"longshell.verdict": str(result["verdict"])})
    return Diagnosis(
        result["report"], tuple(result["figures"]), result["verdict"], result["severity"], tuple(result["findings"])
    )
