"""A campaign's training tasks, grown: longer ones made of accepted ones, each of them run."""

from __future__ import annotations

from prefect import flow

from components.config import CampaignConfig
from tasks.curate import curate
from tasks.defaults import MINIATURE
from tasks.drive import stop_jobs
from tasks.find import claim
from tasks.results import GrownPool
from tasks.synthesize import synthesize as grow


@flow(name="synthesize", flow_run_name="synthesize-{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def synthesize(config: CampaignConfig = MINIATURE) -> GrownPool:
    """Makes the pool and the tasks that are grown from it, or finds them made."""
    claim(config)
    return grow(config, curate(config))


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(synthesize))
