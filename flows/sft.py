"""Up to SFT: whatever comes before it is reused when it is there and made when it is not."""

from __future__ import annotations

from prefect import flow

from components.config import CampaignConfig
from tasks.curate import curate
from tasks.defaults import MINIATURE
from tasks.drive import stop_jobs
from tasks.find import claim
from tasks.results import Checkpoint
from tasks.supervised import base_model
from tasks.supervised import sft as tune


@flow(name="sft", flow_run_name="sft-{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def sft(config: CampaignConfig = MINIATURE) -> Checkpoint:
    """The campaign's SFT checkpoint."""
    claim(config)
    pool = curate(config)
    return tune(config, pool, base_model(config, pool))


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(sft))
