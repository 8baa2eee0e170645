"""Flow tasks: one checkpoint on held-out tasks, or on a suite."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact

from components.config import HELDOUT, CampaignConfig
from components.errors import LongshellError
from tasks import asks, tracking
from tasks.asks import NIGHTLY_INDEX
from tasks.campaign import campaign_name
from tasks.comparison import compare_with_last_night
from tasks.drive import STAGE, Driven, drive
from tasks.results import Checkpoint, Pool, Score
from tasks.trajectories import log_trajectories


class NightError(LongshellError):
    """Campaigns that could not be evaluated in a night; the others were."""

    def __init__(self, failed: Sequence[str], of: int) -> None:
        self.failed = tuple(failed)
        super().__init__(self.failed, of)

    def __str__(self) -> str:
        failed, of = self.args
        return "\n  - ".join([f"{len(failed)} of {of} campaigns could not be evaluated:", *failed])


@task(name="evaluate", task_run_name="evaluate-{checkpoint.label}", **STAGE)
def evaluate(
    config: CampaignConfig, pool: Pool, checkpoint: Checkpoint, trials: int, index: int, label: str | None = None
) -> Score:
    """Evaluates a checkpoint on held-out tasks; `label` names the evaluation when it is not the checkpoint's own."""
    return _evaluate(config, checkpoint, asks.evaluation(pool, checkpoint, trials, index, label))


@task(name="evaluate-suite", task_run_name="evaluate-{checkpoint.label}-on-{suite}", **STAGE)
def evaluate_suite(config: CampaignConfig, checkpoint: Checkpoint, suite: str, index: int, label: str) -> Score:
    """Evaluates a checkpoint on a suite of `evaluation.suites`."""
    return _evaluate(config, checkpoint, asks.suite(checkpoint, suite, index, label))


def _evaluate(config: CampaignConfig, checkpoint: Checkpoint, ask: asks.Ask) -> Score:
    driven = drive(config, ask)
    score = Score.of(driven.result, checkpoint.step)
    _record(config, driven, score, ask.index, checkpoint)
    tracking.tracker().end(driven.run)
    return score


def _record(config: CampaignConfig, driven: Driven, score: Score, index: int, checkpoint: Checkpoint) -> None:
    result, name = score.result, campaign_name(config)
    nightly = index >= NIGHTLY_INDEX
    run, part = driven.parent, result["series"]
    if nightly:  # whose step is the day, on which several checkpoints may be evaluated
        run, part = driven.run, f"{part}.{checkpoint.label}"
    tracking.tracker().log_step(run, index, result["metrics"], time.time_ns() // 1_000_000, part)
    if result["suite"] == HELDOUT and score.pass_rate is not None:
        tracking.registry(name).evaluated(result["checkpoint"], score.pass_rate)
    if trials := result.get("trials"):
        if "harbor" not in result:  # Harbor's trajectories are files of its own, beside the trials
            log_trajectories(driven.store, driven.run, name, trials, index)
        if nightly:
            compare_with_last_night(driven.store, driven.run, name, result["series"], trials, index, part)
    key = _artifact_key(name, score.label, result["series"])
    create_table_artifact(rows_of(result), key=key, description=describe(score))


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The artifact's table: all tasks, the three denominators, and each class; the harness stands in every row."""
    errors = ("stderr", "stderr_estimator")
    columns = ("n", "pass_rate", *errors, "mean_reward", "verifier_reward", "assertions_passed", "turns_mean")
    named, whole = {"harness": result["harness"], "profile": result["profile"]}, result["score"]
    rows = [{"tasks": "all", **named, **{column: result.get(column) for column in (*columns, "infra_rate")}}]
    for name, one in whole.get("denominators", {}).items():
        rows.append({"tasks": f"trials: {name}", **named, "n": one["trials"], "pass_rate": one["resolved"]})
    for column in ("category", "difficulty"):
        for name, one in sorted(whole.get(f"by_{column}", {}).items()):
            told = {"n": one["trials"], "pass_rate": one["resolved"]}
            told |= {figure: one[figure] for figure in (*errors, "turns_mean")}
            rows.append({"tasks": f"{column}: {name}", **named, **told})
    return rows


def describe(score: Score) -> str:
    """One line on what was measured, and what a reader must know about it."""
    result = score.result
    told = f"{score.label} on {result['suite']}, {score.n} trials, profile {result['profile']}, by {result['harness']}"
    headline = result.get("headline")
    if headline is not None and headline["name"] != "resolved":
        value = headline["value"]
        told += f"; its number is {headline['name']}: {'none' if value is None else f'{value:.3f}'}"
    return ". ".join([told, *result.get("caveats", ())])


def _artifact_key(campaign: str, label: str, series: str) -> str:
    """Prefect's keys are lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9-]+", "-", f"{campaign}-{label}-{series}".lower())
