"""Flow task: a campaign's training tasks, grown by rounds of recursive synthesis."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact

from components.config import CampaignConfig
from tasks import tracking
from tasks.asks import Ask
from tasks.campaign import campaign_name
from tasks.drive import STAGE, drive
from tasks.results import GrownPool, Pool

TOLD = 500
"""Rejections shown in Prefect; the job's result holds all of them."""


@task(name="synthesize", **STAGE)
def synthesize(config: CampaignConfig, pool: Pool) -> GrownPool:
    """Makes the grown pool, or finds it made; its address is what `pool.imported.train` takes."""
    driven = drive(config, Ask("synthesize", 0, {"pool": pool.key}))
    result = driven.result
    grown = GrownPool(result["grown"], driven.store.address(result["grown"]), result["digest"], result["tasks"])
    name = campaign_name(config)
    tracking.tracker().log_pool(driven.parent, f"{name}-grown", grown.digest, grown.address)
    tracking.tracker().end(driven.run)
    rows = [{column: str(value) for column, value in row.items()} for row in result["rounds"]]
    create_table_artifact(rows, key=f"{name}-rounds", description=f"{grown.tasks} tasks: {grown.address}")
    if rejections := result["rejections"]:
        told = [
            {column: str(each[column]) for column in ("task", "operator", "reason", "detail")} for each in rejections
        ]
        create_table_artifact(told[:TOLD], key=f"{name}-proposals", description=f"{len(told)} proposals were rejected")
    return grown
