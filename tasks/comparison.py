"""Tonight's evaluation beside that of the night before: what was gained, what was lost, and whether it is chance."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from components.artifacts import ArtifactStore
from components.errors import LongshellError
from tasks import tracking

if TYPE_CHECKING:
    from components.evaluation.compare import Comparison
    from components.tracking import Run

NIGHT = re.compile(r"(?P<folder>.*)/(?P<label>\d{4}-\d\d-\d\d-[^/]+)/trials$")
REGRESSED = "longshell.evaluation.regressed"
"""The event of a night whose checkpoint is worse than the one before it. An automation can send it to a person."""


def compare_with_last_night(
    store: ArtifactStore, run: Run, campaign: str, series: str, trials: str, index: int
) -> None:
    """Compares an evaluation's trials with those of the latest night before it, if there was one.

    Leaves an artifact, the series `eval/<series>/vs_previous/...`, and an event when it got worse; a warning where the
    two cannot be compared. The evaluation stands in any case.
    """
    from components.evaluation.compare import compare, describe, rates
    from components.rollout import load_batch

    before = night_before(store, trials)
    if before is None:
        return
    try:
        with store.borrowed(before) as then, store.borrowed(trials) as now:
            found = compare(*(rates(load_batch(folder).trials) for folder in (then, now)))
    except (LongshellError, ValueError) as error:  # a pool of other tasks, a night of faults, a damaged folder
        get_run_logger().warning("%s is not compared with %s: %s", _label(trials), _label(before), error)
        return
    now_ms = time.time_ns() // 1_000_000
    tracking.tracker().log_step(run, index, found.metrics(series), now_ms, f"{series}.vs_previous")
    text = f"# {_label(trials)} beside {_label(before)} on {series}\n\n{describe(found)}\n"
    key = re.sub(r"[^a-z0-9-]+", "-", f"{campaign}-{series}-nightly-comparison".lower())
    create_markdown_artifact(text, key=key)
    if found.verdict == "worse":
        _tell(campaign, series, _label(trials), _label(before), found)


def night_before(store: ArtifactStore, trials: str) -> str | None:
    """Key of the trials of the latest night before the one of `trials`; None when there is none."""
    tonight = NIGHT.match(trials)
    if tonight is None:
        return None
    found = (NIGHT.match(key) for key in store.list(tonight["folder"]))
    same = [night for night in found if night and night["folder"] == tonight["folder"]]  # other suites lie below it
    nights = [night for night in same if night["label"][:10] < tonight["label"][:10]]
    return max(nights, key=lambda night: night["label"])[0] if nights else None


def _label(trials: str) -> str:
    return trials.split("/")[-2]


def _tell(campaign: str, series: str, tonight: str, before: str, found: Comparison) -> None:
    get_run_logger().warning("%s on %s is worse than %s: %+.1f points", tonight, series, before, 100 * found.difference)
    emit_event(
        REGRESSED,
        resource={"prefect.resource.id": f"longshell.campaign.{campaign}", "prefect.resource.name": campaign},
        payload={"series": series, "evaluation": tonight, "previous": before, **found.to_json()},
    )
