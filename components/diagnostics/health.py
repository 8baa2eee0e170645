"""How campaigns are doing right now, from their artifact store alone: what a watcher that never sleeps asks.

Invariant: what was not measured is absent, and a campaign that cannot be read hides no other. Reading costs one listing
and a few small documents a campaign, however many steps it has.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from components.artifacts import ArtifactStore
from components.errors import DamagedError
from components.naming import campaign_key, step_key

log = logging.getLogger(__name__)

_STEP = re.compile(r"campaigns/(?P<campaign>[^/]+)/(?P<stage>[^/]+)/steps/(?P<step>\d{6})/record\.json")
_ATTEMPT = re.compile(r"campaigns/(?P<campaign>[^/]+)/jobs/(?P<job>[^/]+)/submitted-\d+\.json")
_DONE = re.compile(r"campaigns/(?P<campaign>[^/]+)/jobs/(?P<job>[^/]+)/result\.json")
_OWNED = re.compile(r"campaigns/(?P<campaign>[^/]+)/campaign\.json")
_FINISHED = "results.json"


@dataclass(frozen=True, slots=True)
class StageHealth:
    """The last committed step of a stage.

    Attributes:
        step: its number.
        committed_s: when, in seconds since 1970.
        metrics: what was measured of it.
    """

    step: int
    committed_s: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CampaignHealth:
    """One campaign.

    Attributes:
        started_s: when its name was taken, in seconds since 1970.
        finished: whether its results are there.
        stages: by their names, those that have a step.
        attempts: how often each unfinished job was submitted, by its submission id.
        done: jobs that have a result.
        severity: of its last diagnosis: ok, blind, warn or red; None before there is one.
    """

    started_s: float
    finished: bool
    stages: Mapping[str, StageHealth]
    attempts: Mapping[str, int]
    done: int
    severity: str | None


@dataclass(slots=True)
class _Listed:
    """Keys of a campaign, sorted out."""

    steps: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    done: set[str] = field(default_factory=set)


def health(store: ArtifactStore) -> dict[str, CampaignHealth | None]:
    """Every campaign of a store, by its name; None for one that has a document which is damaged, or not one of ours.

    Raises:
        StoreError: the store cannot be read.
    """
    keys = store.list("campaigns")
    return {name: _readable(store, name, listed, set(keys)) for name, listed in _sorted_out(keys).items()}


def _sorted_out(keys: Iterable[str]) -> dict[str, _Listed]:
    found: dict[str, _Listed] = {}
    for key in keys:
        if match := _OWNED.fullmatch(key):
            found.setdefault(match["campaign"], _Listed())
    for key in keys:
        for pattern in (_STEP, _ATTEMPT, _DONE):
            if (match := pattern.fullmatch(key)) is None or (listed := found.get(match["campaign"])) is None:
                continue
            if pattern is _STEP:
                listed.steps[match["stage"]] = max(int(match["step"]), listed.steps.get(match["stage"], 0))
            elif pattern is _ATTEMPT:
                listed.attempts[match["job"]] += 1
            else:
                listed.done.add(match["job"])
    return found


def _readable(store: ArtifactStore, name: str, listed: _Listed, keys: set[str]) -> CampaignHealth | None:
    """The boundary at which a document that is not as it was agreed becomes a campaign that cannot be read."""
    try:
        return _campaign(store, name, listed, keys)
    except (DamagedError, LookupError, TypeError, ValueError, AttributeError) as error:
        log.warning("campaign %s cannot be read: %s: %s", name, type(error).__name__, error)
        return None


def _campaign(store: ArtifactStore, name: str, listed: _Listed, keys: set[str]) -> CampaignHealth:
    return CampaignHealth(
        started_s=float(store.get_json(campaign_key(name, "campaign.json"))["started_s"]),
        finished=campaign_key(name, _FINISHED) in keys,
        stages={stage: _stage(store, name, stage, step) for stage, step in listed.steps.items()},
        attempts={job: count for job, count in listed.attempts.items() if job not in listed.done},
        done=len(listed.done),
        severity=_severity(store, name, listed.done),
    )


def _stage(store: ArtifactStore, name: str, stage: str, step: int) -> StageHealth:
    record = store.get_json(step_key(name, stage, step, "record.json"))
    measured = {series: float(value) for series, value in record["metrics"].items() if value is not None}
    return StageHealth(step, record["timestamp_ms"] / 1_000, {k: v for k, v in measured.items() if v == v})


def _severity(store: ArtifactStore, name: str, done: set[str]) -> str | None:
    """Of the diagnosis that had seen most steps, and of equal ones the newest.

    Those of number 0 may have been asked for at any time; of the legs' no earlier one can have seen more than the last.
    """
    start = f"{name}-diagnose-"
    numbers = {job: int(job.removeprefix(start).partition("-")[0]) for job in sorted(done) if job.startswith(start)}
    looked_at = {0, max(numbers.values(), default=0)}
    results = [
        store.get_json(campaign_key(name, "jobs", job, "result.json"))
        for job, number in numbers.items()
        if number in looked_at
    ]
    if not results:
        return None
    # What an earlier version told has neither, and gives way to what has.
    return str(max(results, key=lambda result: (result.get("steps", 0), result.get("told_s", 0.0)))["severity"])
