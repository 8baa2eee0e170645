"""Flow task: what happened in a campaign, and whether to worry."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import NAMESPACE_URL, uuid5

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.events import emit_event

from components.config import CampaignConfig
from tasks import asks, tracking
from tasks.campaign import campaign_name
from tasks.drive import STAGE, Driven, drive
from tasks.results import Diagnosis, Score
from tasks.trajectories import link_trajectories

RED = "longshell.diagnosis.red"
"""The event of a red diagnosis, of a leg or of the whole. An automation can send it to a person."""


@task(name="diagnose", **STAGE)
def diagnose(config: CampaignConfig, scores: Sequence[Score], leg: int | None = None) -> Diagnosis:
    """Reads the campaign's records and evaluations, up to the end of `leg` or all of them.

    The report becomes a Prefect artifact and, with its figures, a page among MLflow's artifacts.
    """
    driven = drive(config, asks.diagnosis(config, scores, leg))
    result, name = driven.result, campaign_name(config)
    place = "diagnosis" if leg is None else f"diagnosis/leg-{leg}"
    key = f"{name}-diagnosis" if leg is None else f"{name}-diagnosis-leg-{leg}"
    report, whole = _linked(driven, name, place)
    create_markdown_artifact(report, key=key, description=f"verdict: {result['verdict']}")
    tracker = tracking.tracker()
    tracker.log_bytes(driven.parent, f"{place}/report.md", report.encode())
    tracker.log_bytes(driven.parent, f"{place}/report.html", whole)
    if leg is None:
        for figure in result["figures"]:
            tracker.log_bytes(driven.parent, f"figures/{figure.rpartition('/')[2]}", driven.store.get_bytes(figure))
        tracker.end(driven.run)
        if url := tracking.link(driven.parent):
            create_link_artifact(url, link_text="MLflow charts", key=f"{name}-mlflow")
    tracker.log_tags(driven.parent, {"longshell.verdict": str(result["verdict"])})
    made = Diagnosis(
        result["report"], tuple(result["figures"]), result["verdict"], result["severity"], tuple(result["findings"])
    )
    _alarm(name, made, leg)
    return made


def _alarm(campaign: str, diagnosis: Diagnosis, leg: int | None) -> None:
    """Tells Prefect of a red diagnosis: the same event of the same report, however often the task runs."""
    if diagnosis.severity != "red":
        return
    after = "the last leg" if leg is None else f"leg {leg}"
    emit_event(
        RED,
        resource={"prefect.resource.id": f"longshell.campaign.{campaign}", "prefect.resource.name": campaign},
        payload={"after": after, "verdict": diagnosis.verdict, "report": diagnosis.report},
        id=uuid5(NAMESPACE_URL, diagnosis.report),
    )


def _linked(driven: Driven, campaign: str, place: str) -> tuple[str, bytes]:
    """The report as Markdown and as a page, whose trials lead to their pages and traces in MLflow."""
    from components.diagnostics import page
    from components.diagnostics.trajectory import Chosen, beside, section

    store, result = driven.store, driven.result
    report, trajectories = store.get_bytes(result["report"]).decode(), result.get("trajectories")
    if not trajectories:  # none is worth it, or the job was one of before
        return report, store.get_bytes(result["page"])
    read = [Chosen.from_json(told) for told in trajectories]
    links = link_trajectories(store, driven.parent, campaign, trajectories, place)
    text = report.replace(section(read, beside(links)), section(read, links))
    drawn = {key.rpartition("/")[2].removesuffix(".png"): store.get_bytes(key) for key in result["figures"]}
    return text, page(report.partition("\n")[0].removeprefix("# "), text, drawn).encode()
