"""Curation alone: the pool of a campaign."""

from __future__ import annotations

from prefect import flow

from components.config import CampaignConfig
from tasks.curate import curate as make_pool
from tasks.defaults import MINIATURE
from tasks.drive import stop_jobs
from tasks.find import claim
from tasks.results import Pool


@flow(name="curate", flow_run_name="curate-{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def curate(config: CampaignConfig = MINIATURE) -> Pool:
    """Makes the pool, or finds it made."""
    claim(config)
    return make_pool(config)


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(curate))
