"""Flow task: the pool of tasks, generated or imported, and gated by execution."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact

from components.config import CampaignConfig
from tasks import tracking
from tasks.campaign import campaign_name
from tasks.drive import STAGE, drive
from tasks.results import Pool

TOLD = 500
"""Rejections shown in Prefect; the job's result holds all of them."""


@task(name="curate", **STAGE)
def curate(config: CampaignConfig) -> Pool:
    """Makes the campaign's pool, or finds it made."""
    driven = drive(config, "curate", 0, {})
    result = driven.result
    pool = Pool(result["pool"], result["digest"], result["accepted"], result["rejected"], result.get("seconds", 0.0))
    name = campaign_name(config)
    tracking.tracker().log_pool(driven.parent, f"{name}-pool", pool.digest, driven.store.address(pool.key))
    tracking.tracker().end(driven.run)
    columns = ("accepted", "rejected", "train", "heldout", "digest")
    create_table_artifact([{column: result[column] for column in columns}], key=f"{name}-pool")
    if rejections := result.get("rejections"):
        told = f"{len(rejections)} tasks are not in the pool" + (
            f"; the first {TOLD}" if len(rejections) > TOLD else ""
        )
        create_table_artifact(rejections[:TOLD], key=f"{name}-rejections", description=told)
    return pool
