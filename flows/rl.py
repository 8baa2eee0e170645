"""Up to the last leg of RL: whatever comes before is reused when it is there and made when it is not."""

from __future__ import annotations

from prefect import flow

from components.config import CampaignConfig
from tasks.curate import curate
from tasks.defaults import MINIATURE
from tasks.drive import stop_jobs
from tasks.find import claim
from tasks.results import Checkpoint
from tasks.rl import rl_leg
from tasks.supervised import base_model, sft
from tasks.warmup import warm_up


@flow(name="rl", flow_run_name="rl-{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def rl(config: CampaignConfig = MINIATURE) -> Checkpoint:
    """All legs; gives the last one's checkpoint."""
    claim(config)
    pool = curate(config)
    checkpoint = sft(config, pool, base_model(config, pool))
    critic = warm_up(config, pool, checkpoint) if config.ppo.warmup else None
    for leg in range(1, config.rl.legs + 1):
        checkpoint = rl_leg(config, pool, checkpoint, leg, critic)
    return checkpoint


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(rl))
