"""Flow tasks: the base model and SFT, both by next-token loss: on demonstrations, or on trials that passed."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from components.config import CampaignConfig
from components.naming import imported_key
from tasks import asks, tracking
from tasks.campaign import campaign_name, check_model
from tasks.drive import STAGE, Driven, drive
from tasks.rejection import rejection
from tasks.results import Checkpoint, Pool, Samples
from tasks.site import Site


@task(name="base", **STAGE)
def base_model(config: CampaignConfig, pool: Pool) -> Checkpoint:
    """The model that the campaign starts from: the one at `model.path`, or one trained from demonstrations."""
    if config.model.path is not None:
        return _imported(config, config.model.path)
    assert config.base is not None
    return _checkpoint(config, drive(config, asks.base(pool)), "base")


def sft(config: CampaignConfig, pool: Pool, base: Checkpoint) -> Checkpoint:
    """The base model after supervised fine-tuning. Called within a flow: the part of its graph that makes it."""
    return tuned(config, pool, base, None if config.sft.rejection is None else rejection(config, pool, base))


@task(name="sft", **STAGE)
def tuned(config: CampaignConfig, pool: Pool, base: Checkpoint, samples: Samples | None) -> Checkpoint:
    """The base model, tuned on samples, or on demonstrations where there are none."""
    return _checkpoint(config, drive(config, asks.sft(pool, base, samples)), "sft")


def _checkpoint(config: CampaignConfig, driven: Driven, label: str) -> Checkpoint:
    result = driven.result
    made = Checkpoint(label, result["checkpoint"], 0, result.get("metrics", {}), seconds=result.get("seconds", 0.0))
    tracking.register(campaign_name(config), driven.run, made, driven.store, (label,))
    tracking.tracker().end(driven.run)
    return made


def _imported(config: CampaignConfig, path: str) -> Checkpoint:
    """Copies a model folder into the store once, so that every later stage reads it from there."""
    check_model(config)
    name, store = campaign_name(config), Site.current().store()
    imported = Checkpoint("base", imported_key(name), 0)
    if not store.exists(imported.key):
        store.put_tree(imported.key, Path(path))
    tracking.register(name, tracking.campaign_run(name, config, {}), imported, store, ("base",))
    return imported
