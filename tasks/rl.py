"""Flow tasks: the critic's warm-up and the legs of RL."""

from __future__ import annotations

from prefect import task

from components.config import CampaignConfig
from tasks import tracking
from tasks.campaign import campaign_name
from tasks.drive import STAGE, drive
from tasks.results import Checkpoint, Pool


@task(name="warmup", **STAGE)
def warm_up_critic(config: CampaignConfig, pool: Pool, start: Checkpoint) -> str:
    """Trains actor and critic for a while and keeps the critic; gives its store key."""
    inputs = {"pool": pool.key, "checkpoint": start.key}
    driven = drive(config, "warmup", 0, inputs, steps=config.rl.warmup_steps)
    tracking.tracker().end(driven.run)
    return str(driven.result["critic"])


@task(name="rl-leg", task_run_name="rl-leg-{leg}", **STAGE)
def rl_leg(config: CampaignConfig, pool: Pool, before: Checkpoint, leg: int, critic: str | None) -> Checkpoint:
    """Leg number `leg` (from 1): `rl.leg_steps` steps on top of `before`, one checkpoint at the end."""
    steps = config.rl.leg_steps
    inputs = {
        "pool": pool.key,
        "checkpoint": before.key,
        "state": before.state,
        "first_step": (leg - 1) * steps,
        "critic": critic,
    }
    driven = drive(config, "rl", leg, inputs, steps=steps)
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
    if leg == config.rl.legs:
        tracking.tracker().end(driven.run)
    return made
