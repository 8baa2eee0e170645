"""Checkpoints on held-out tasks and on every configured suite; every night on a schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import prefect.runtime
from prefect import flow, get_run_logger

from components.config import CampaignConfig
from tasks.asks import NIGHTLY_INDEX
from tasks.campaign import campaign_name
from tasks.curate import curate
from tasks.defaults import MINIATURE
from tasks.drive import stop_jobs
from tasks.evaluate import NightError
from tasks.evaluate import evaluate as score
from tasks.evaluate import evaluate_suite as score_suite
from tasks.find import claim, claimed, find_begun, find_checkpoint
from tasks.results import Score
from tasks.supervised import base_model
from tasks.terminal import brief

Which = Literal["latest", "best", "sft", "base"]


def _run_name() -> str:
    asked: dict[str, Any] = prefect.runtime.flow_run.parameters
    return "evaluate-every-campaign" if asked["every"] else f"evaluate-{campaign_name(asked['config'])}"


@flow(name="evaluate", flow_run_name=_run_name, on_cancellation=[stop_jobs])
def evaluate(config: CampaignConfig = MINIATURE, checkpoint: Which = "latest", every: bool = False) -> list[Score]:
    """Evaluates today's `checkpoint` once a day; before a campaign has one, its base model.

    With `every`, that of each campaign which has one, instead of the configuration's alone, one after another. A
    campaign that cannot be evaluated does not keep the others from it; it fails the run at its end.
    """
    begun = find_begun(checkpoint) if every else []
    if not begun:
        return _tonight(config, checkpoint)
    scores: list[Score] = []
    failed: list[str] = []
    for name in begun:
        try:
            scores += _tonight(claimed(name), checkpoint)
        except Exception as error:  # The boundary of one campaign: all others have their turn first.
            failed.append(f"{name}: {brief(error)}")
            get_run_logger().error("%s is not evaluated: %s", name, brief(error))
    if failed:
        raise NightError(failed, of=len(begun))
    return scores


def _tonight(config: CampaignConfig, checkpoint: Which) -> list[Score]:
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
