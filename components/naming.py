"""What the things of a campaign are called: keys of the artifact store, runs and models of MLflow.

Invariant: whoever makes a thing, looks for it, or foresees it takes its name from here.
"""

from __future__ import annotations

import re

EXPERIMENT = "longshell"
"""MLflow's experiment, of every campaign."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def shown(address: str) -> str:
    """An address as it may be shown: with `***` for who connects and for its query, where libpq takes a password.

    One that is malformed may hold a password anywhere, so it is not parsed; where both could be meant, all is hidden.
    """
    scheme = "" if (found := _SCHEME.match(address)) is None else found[0]
    who, at, place = address.removeprefix(scheme).rpartition("@")
    if "?" in who:
        return f"{scheme}***"
    place, query, _ = place.partition("?")
    return f"{scheme}{at and '***@'}{place}{query and '?***'}"


def campaign_key(campaign: str, *parts: str | int) -> str:
    """Everything that a campaign keeps in the store lies below `campaigns/<campaign>`."""
    return "/".join(["campaigns", campaign, *(str(part) for part in parts)])


def pool_key(campaign: str) -> str:
    """The curated pool."""
    return campaign_key(campaign, "pool")


def imported_key(campaign: str) -> str:
    """The copy of `model.path`, which is the base model then."""
    return campaign_key(campaign, "base", "imported")


def checkpoint_key(campaign: str, stage: str) -> str:
    """The model that a supervised stage ends with."""
    return campaign_key(campaign, stage, "checkpoint")


def samples_key(campaign: str) -> str:
    """What SFT learns from, where that are trials that passed."""
    return campaign_key(campaign, "rejection", "samples")


def critic_key(campaign: str) -> str:
    """The critic's weights after its warm-up."""
    return campaign_key(campaign, "warmup", "critic")


def leg_checkpoint_key(campaign: str, leg: int) -> str:
    """The model at the end of a leg."""
    return campaign_key(campaign, "rl", "legs", leg, "checkpoint")


def step_key(campaign: str, stage: str, step: int, name: str) -> str:
    """Something of one step: its `record.json`, or the trainer's `state`."""
    return campaign_key(campaign, stage, "steps", f"{step:06d}", name)


def evaluation_key(campaign: str, label: str, part: str, suite: str | None = None) -> str:
    """What an evaluation leaves, of the held-out tasks or of a suite. Nights of one suite lie beside each other."""
    return campaign_key(campaign, "evaluate", *([] if suite is None else [suite]), label, part)


def diagnosis_key(campaign: str, through: int | None, *parts: str) -> str:
    """A part of a report: of the steps before `through`, or of all."""
    folder = ("diagnose",) if through is None else ("diagnose", f"step-{through:06d}")
    return campaign_key(campaign, *folder, *parts)


def run_key(campaign: str, stage: str) -> str:
    """By what MLflow's run of a stage is found again (tag `longshell.key`); the campaign's own is its name alone."""
    return f"{campaign}/{stage}"


def registered_model(campaign: str) -> str:
    """MLflow's registered model, of which every checkpoint is a version."""
    return f"longshell-{campaign}"
