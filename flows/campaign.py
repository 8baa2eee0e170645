"""The campaign: base model, SFT, the critic's warm-up when it has one, and legs of RL.

Every checkpoint is evaluated, and every leg diagnosed, beside the stage that follows it.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.futures import wait

from components.config import CampaignConfig
from tasks.curate import curate
from tasks.defaults import MINIATURE
from tasks.diagnose import diagnose
from tasks.drive import stop_jobs
from tasks.evaluate import evaluate
from tasks.find import claim
from tasks.hold import hold
from tasks.rl import rl_leg
from tasks.summary import summarize
from tasks.supervised import base_model, sft
from tasks.warmup import warm_up


@flow(name="campaign", flow_run_name="{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def campaign(config: CampaignConfig = MINIATURE) -> dict[str, Any]:
    """Trains, evaluates and diagnoses one campaign. The same name and configuration continue it where it stopped."""
    claim(config)
    trials, leg_trials = config.evaluation.trials, config.evaluation.leg_trials
    pool = curate(config)

    base = base_model(config, pool)
    evaluations: list[Any] = [
        evaluate.submit(config, pool, base, trials, index=0)
    ]  # A task that gets one waits for it.
    tuned = sft(config, pool, base)
    evaluations.append(evaluate.submit(config, pool, tuned, trials, index=1))

    critic = warm_up(config, pool, tuned) if config.ppo.warmup else None
    checkpoints, watches = [base, tuned], []
    for leg in range(1, config.rl.legs + 1):
        checkpoints.append(rl_leg(config, pool, checkpoints[-1], leg, critic))
        asked = trials if leg == config.rl.legs else leg_trials
        evaluations.append(evaluate.submit(config, pool, checkpoints[-1], asked, index=leg + 1))
        if leg < config.rl.legs:
            watches.append(diagnose.submit(config, list(evaluations), leg))
            if config.diagnosis.pause_on_red:
                hold(watches[-1].result(), leg)

    scores = [evaluation.result() for evaluation in evaluations]
    wait(watches)
    diagnosis = diagnose(config, scores)
    return summarize(config, checkpoints, scores, diagnosis)


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(campaign, reports=True))
