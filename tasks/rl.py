"""Flow task: a leg of RL."""

from __future__ import annotations

from prefect import task

from components.config import CampaignConfig
from tasks import asks, tracking
from tasks.campaign import campaign_name
from tasks.drive import STAGE, drive
from tasks.ledger import log_ledger
from tasks.results import Checkpoint, Pool, WarmCritic


@task(name="rl-leg", task_run_name="rl-leg-{leg}", **STAGE)
def rl_leg(
    config: CampaignConfig, pool: Pool, before: Checkpoint, leg: int, critic: WarmCritic | None = None
) -> Checkpoint:
    """Leg number `leg` (from 1): `rl.leg_steps` steps on top of `before`, one checkpoint at the end.

    The first leg begins with the weights of `critic`, or with a cold critic; the others go on with their own.
    """
    steps = config.rl.leg_steps
    driven = drive(config, asks.leg(config, pool, before, leg, critic))
    result = driven.result
    made = Checkpoint(
        label=f"leg-{leg}",
        key=result["checkpoint"],
        step=leg * steps,
        metrics=result["metrics"],
        state=result["state"],
        launched=result["launched"],
        cancelled=result["cancelled"],
        seconds=result.get("seconds", 0.0),
    )
    tracking.register(campaign_name(config), driven.run, made, driven.store, ())
    log_ledger(driven.store, driven.run, campaign_name(config), leg, range((leg - 1) * steps, leg * steps))
    if leg == config.rl.legs:
        tracking.tracker().end(driven.run)
    return made
