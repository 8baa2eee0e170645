"""One checkpoint of a campaign on held-out tasks and on every configured suite; every night on a schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from prefect import flow

from components.config import CampaignConfig
from tasks.asks import NIGHTLY_INDEX
from tasks.curate import curate
from tasks.defaults import MINIATURE
from tasks.drive import stop_jobs
from tasks.evaluate import evaluate as score
from tasks.evaluate import evaluate_suite as score_suite
from tasks.find import claim, find_checkpoint
from tasks.results import Score
from tasks.supervised import base_model


@flow(name="evaluate", flow_run_name="evaluate-{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def evaluate(
    config: CampaignConfig = MINIATURE, checkpoint: Literal["latest", "best", "sft", "base"] = "latest"
) -> list[Score]:
    """Evaluates today's `checkpoint` once a day; before a campaign has one, its base model."""
    claim(config)
    pool = curate(config)
    found = find_checkpoint(config, checkpoint) or base_model(config, pool)
    today = datetime.now(UTC).date()
    label = f"{today.isoformat()}-{found.label}"
    index = NIGHTLY_INDEX + today.toordinal()
    scores = [score(config, pool, found, config.evaluation.trials, index, label)]
    return scores + [score_suite(config, found, suite.name, index, label) for suite in config.evaluation.suites]


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(evaluate))
