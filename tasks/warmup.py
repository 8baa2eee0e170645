"""Flow task: the critic's warm-up."""

from __future__ import annotations

from prefect import task

from components.config import CampaignConfig
from tasks import asks, tracking
from tasks.drive import STAGE, drive
from tasks.results import Checkpoint, Pool, WarmCritic


@task(name="warm-up", **STAGE)
def warm_up(config: CampaignConfig, pool: Pool, before: Checkpoint) -> WarmCritic:
    """A critic trained beside an actor that starts from `before`, on the warm-up pool; the actor is not kept."""
    driven = drive(config, asks.warmup(config, pool, before))
    tracking.tracker().end(driven.run)
    return WarmCritic(driven.result["critic"], driven.result["metrics"], driven.result.get("seconds", 0.0))
