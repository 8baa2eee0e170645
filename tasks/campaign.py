"""A campaign's name, and the rule that one name stands for one configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore
from components.config import CampaignConfig, validate
from components.errors import ConfigError, DamagedError
from components.naming import campaign_key
from components.planner import require
from tasks.site import Site


def campaign_name(config: CampaignConfig) -> str:
    """Names the campaign in Prefect, Ray, MLflow and the store."""
    return f"{config.name}-s{config.seed}"


def claim(config: CampaignConfig, store: ArtifactStore) -> float:
    """Takes the campaign's name for this configuration; gives the time at which it was first taken.

    Raises:
        ConfigError: the name belongs to another configuration. Lists what differs.
    """
    check_claim(config, store)
    key = claim_key(campaign_name(config))
    if not store.create_json(key, {"config": config.model_dump(mode="json"), "started_s": time.time()}):
        check_claim(config, store)  # Another process took it in this instant.
    return float(store.get_json(key)["started_s"])


def check_claim(config: CampaignConfig, store: ArtifactStore) -> None:
    """Refuses a configuration whose name belongs to another one; takes nothing.

    Raises:
        ConfigError: lists what differs.
        DamagedError: the stored one is not what was put.
    """
    if not store.exists(key := claim_key(campaign_name(config))):
        return
    try:
        before = store.get_json(key)["config"]
    except DamagedError as error:
        raise DamagedError(f"{error}; delete it: the same command writes it again") from error
    differences = _differences(_as_today(before, key), config.model_dump(mode="json"))
    if differences:
        name = campaign_name(config)
        advice = f"campaign {name} exists with another configuration; choose another name (name=…), or delete it"
        raise ConfigError([advice, *differences], "configuration")


def _as_today(document: dict[str, Any], key: str) -> dict[str, Any]:
    """A stored configuration with the defaults of keys that came later; as it stands where it has one that is gone."""
    try:
        return validate(document, key).model_dump(mode="json")
    except ConfigError:
        return document


def claim_key(name: str) -> str:
    """Where a campaign's configuration stands in the store."""
    return campaign_key(name, "campaign.json")


def check_model(config: CampaignConfig) -> None:
    """Refuses a configuration that names a model folder which is not one.

    Raises:
        ConfigError: the folder is absent or has no `config.json`.
    """
    path = config.model.path
    if path is None:
        return
    if not Path(path).is_dir():
        raise ConfigError([f"model.path: there is no folder {path}"], "configuration")
    if not (Path(path) / "config.json").is_file():
        raise ConfigError([f"model.path: {path} is not a Hugging Face model (no config.json)"], "configuration")


def check_plan(config: CampaignConfig, site: Site) -> None:
    """Refuses a campaign that cannot fit: its layout on the GPUs that it names, or all of it on this machine. Jobs of a
    given Ray cluster ask their own machine.

    Raises:
        ConfigError: with the arithmetic.
    """
    if config.trainer.device_memory_gib is not None or "ray" not in site.given:
        require(config)


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(before.keys() | now.keys())
        return [line for name in names for line in _differences(before.get(name), now.get(name), f"{path}.{name}")]
    return [] if before == now else [f"{path.lstrip('.')}: was {before!r}, is {now!r}"]
