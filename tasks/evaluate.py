"""Flow task: one checkpoint on held-out tasks."""

from __future__ import annotations

import time

from prefect import task
from prefect.artifacts import create_table_artifact

from components.config import CampaignConfig
from tasks import tracking
from tasks.campaign import campaign_name
from tasks.comparison import compare_with_last_night
from tasks.drive import STAGE, Driven, drive
from tasks.results import Checkpoint, Pool, Score
from tasks.trajectories import log_trajectories

NIGHTLY_INDEX = 1_000
"""Evaluations outside the campaign's own sequence are numbered from here."""


@task(name="evaluate", task_run_name="evaluate-{checkpoint.label}", **STAGE)
def evaluate(
    config: CampaignConfig, pool: Pool, checkpoint: Checkpoint, trials: int, index: int, label: str | None = None
) -> Score:
    """Evaluates a checkpoint; `label` names the evaluation when it is not the checkpoint's own."""
    label = label or checkpoint.label
    inputs = {"pool": pool.key, "checkpoint": checkpoint.key, "trials": trials, "label": label}
    driven = drive(config, "evaluate", index, inputs)
    score = Score.of(driven.result, checkpoint.step)
    _record(config, driven, score, index)
    tracking.tracker().end(driven.run)
    return score


def _record(config: CampaignConfig, driven: Driven, score: Score, index: int) -> None:
    result, suite = score.result, score.result["suite"]
    run = driven.parent if index < NIGHTLY_INDEX else driven.run
    tracking.tracker().log_step(run, index, result["metrics"], time.time_ns() // 1_000_000)
    if index < NIGHTLY_INDEX and score.pass_rate is not None:
        tracking.registry(campaign_name(config)).evaluated(result["checkpoint"], score.pass_rate)
    if trials := result.get("trials"):
        log_trajectories(driven.store, driven.run, trials, result["checkpoint"], index)
        if index >= NIGHTLY_INDEX:
            compare_with_last_night(driven.store, driven.run, campaign_name(config), suite, trials, index)
    columns = ("n", "pass_rate", "stderr", "mean_reward", "assertions_passed", "turns_mean", "infra_rate")
    rows = [{"tasks": "all", **{column: result.get(column) for column in columns}}]
    rows += [{"tasks": name, "pass_rate": value} for name, value in sorted(result.get("by_category", {}).items())]
    key = f"{campaign_name(config)}-{score.label}-{suite}".lower()
    create_table_artifact(rows, key=key, description=f"{score.label} on {suite}, {score.n} trials")
