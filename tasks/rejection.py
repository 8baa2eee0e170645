"""Flow task: trials on the training tasks, of which SFT learns from those that passed."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact

from components.config import CampaignConfig
from tasks import asks, tracking
from tasks.campaign import campaign_name
from tasks.drive import STAGE, drive
from tasks.results import Checkpoint, Pool, Samples

COUNTS = ("tried", "graded", "passed", "pass_rate", "kept", "streams", "tasks", "tasks_kept", "passes")


@task(name="rejection", **STAGE)
def rejection(config: CampaignConfig, pool: Pool, base: Checkpoint) -> Samples:
    """The samples, made or found made; their trials are the base model's, or a teacher's."""
    driven = drive(config, asks.rejection(pool, base))
    result, name = driven.result, campaign_name(config)
    tracking.tracker().end(driven.run)
    row = {column: result[column] for column in COUNTS} | dict(result["left_out"]) | dict(result["teacher"] or {})
    create_table_artifact([row], key=f"{name}-rejection", description=f"what SFT learns from: {result['trials']}")
    if result["told"]:
        told = f"{result['tried'] - result['kept']} trials are not learned from; the first {len(result['told'])}"
        create_table_artifact([dict(each) for each in result["told"]], key=f"{name}-rejected-trials", description=told)
    return Samples(result["samples"], result["kept"], result["tried"], result.get("seconds", 0.0))
