"""This installation's MLflow, opened once a process. Importing MLflow takes seconds, so that is done here, late."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from components.artifacts import ArtifactStore
from components.config import CampaignConfig
from components.naming import anonymous
from tasks.results import Checkpoint
from tasks.site import Site

if TYPE_CHECKING:
    from components.tracking import Registry, Run, Tracker


@functools.cache
def tracker() -> Tracker:
    """The tracker of the current site."""
    from components.tracking import Tracker

    site = Site.current()
    return Tracker(site.tracking_uri, None if "mlflow" in site.given else site.home / "mlflow" / "artifacts")


def registry(campaign: str) -> Registry:
    """The registered model of a campaign."""
    from components.tracking import Registry

    return Registry(tracker(), campaign)


def campaigns() -> list[str]:
    """Names of the campaigns that have checkpoints."""
    from components.tracking import campaigns

    return campaigns(tracker())


def register(campaign: str, run: Run, checkpoint: Checkpoint, store: ArtifactStore, aliases: tuple[str, ...]) -> None:
    """Makes a checkpoint a version of the campaign's model, with these aliases."""
    from components.tracking import Checkpoint as Registered

    address = store.address(checkpoint.key)
    registered = Registered(checkpoint.key, address, checkpoint.label, checkpoint.step)
    registry(campaign).register(run, registered, aliases)


def campaign_run(name: str, config: CampaignConfig, tags: dict[str, str]) -> Run:
    """The parent run."""
    return tracker().campaign(name, config.model_dump(mode="json"), tags)


def link(run: Run) -> str | None:
    """Where a person sees the run's charts; None when no MLflow server runs."""
    return _page(run, f"runs/{run.run_id}/model-metrics")


def file_link(run: Run, path: str) -> str | None:
    """Where a person sees a file that is kept with the run; None when no MLflow server runs."""
    return _page(run, f"runs/{run.run_id}/artifacts/{path}")


def trace_link(run: Run, trace_id: str) -> str | None:
    """Where a person sees a trace; None when no MLflow server runs."""
    return _page(run, f"traces?selectedEvaluationId={trace_id}&traceId={trace_id}")


def _page(run: Run, place: str) -> str | None:
    server = Site.current().service("mlflow")
    return f"{anonymous(server)[0]}/#/experiments/{run.experiment_id}/{place}" if server else None
