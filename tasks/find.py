"""Flow tasks that look up what a campaign has made so far, for the stages that are run on their own."""

from __future__ import annotations

import os

import prefect.runtime
from prefect import get_run_logger, task
from prefect.logging.handlers import APILogWorker

from components.config import CampaignConfig, validate
from components.diagnostics import evaluated
from components.errors import ConfigError
from tasks import alone, tracking
from tasks import campaign as campaigns
from tasks.results import Checkpoint, Score
from tasks.site import Site


@task(name="claim")
def claim(config: CampaignConfig, begin: bool = True) -> str:
    """Takes the campaign's name for this configuration, or refuses; gives the name. Not to begin is to look only.

    A process whose flow run another process has ends here.
    """
    site = Site.current()
    if (other := alone.take(prefect.runtime.flow_run.id, site.home)) is not None:
        get_run_logger().warning("process %d runs this flow run already: process %d ends", other, os.getpid())
        APILogWorker.drain_all(timeout=10)
        os._exit(0)  # An exception would be a state of the run, which goes on in the other process.
    campaigns.check_model(config)
    campaigns.check_plan(config, site)
    (campaigns.claim if begin else campaigns.check_claim)(config, site.store())
    return campaigns.campaign_name(config)


@task(name="find-checkpoint")
def find_checkpoint(config: CampaignConfig, which: str) -> Checkpoint | None:
    """The campaign's `base`, `sft`, `best` or `latest` checkpoint; None before there is one."""
    found = tracking.registry(campaigns.campaign_name(config)).alias(which)
    return None if found is None else Checkpoint(found.label, found.key, found.step)


@task(name="find-campaigns")
def find_begun(which: str) -> list[str]:
    """Names of the campaigns that have a `base`, `sft`, `best` or `latest` checkpoint, in their order."""
    return [name for name in tracking.campaigns() if tracking.registry(name).alias(which) is not None]


@task(name="find-configuration")
def claimed(name: str) -> CampaignConfig:
    """What a campaign was begun with.

    Raises:
        ConfigError: the store has no such campaign, or this version does not read its configuration.
    """
    store = Site.current().store()
    key = campaigns.claim_key(name)
    if not store.exists(key):
        raise ConfigError([f"there is no {key} in {store.url}; its checkpoints are known to MLflow only"], name)
    return validate(store.get_json(key)["config"], key)


@task(name="find-scores")
def find_scores(config: CampaignConfig) -> list[Score]:
    """The finished evaluations of the campaign's own sequence, in its order.

    Raises:
        ConfigError: there are none.
    """
    name, store = campaigns.campaign_name(config), Site.current().store()
    found = evaluated(store, name)
    if not found:
        raise ConfigError([f"campaign {name} has no evaluation to diagnose yet; run `campaign` first"], "diagnose")
    return [Score.of(each.result, each.step) for each in found]
