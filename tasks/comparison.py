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

NIGHT = re.compile(r"(?P<folder>.*)/(?P<label>(?P<date>\d{4}-\d\d-\d\d)-(?P<checkpoint>[^/]+))/trials$")
LEG = re.compile(r"leg-(\d+)")
REGRESSED = "longshell.evaluation.regressed"
"""The event of a night whose checkpoint is worse than the one before it. An automation can send it to a person."""


def compare_with_last_night(
    store: ArtifactStore, run: Run, campaign: str, series: str, trials: str, index: int, part: str
) -> None:
    """Compares an evaluation's trials with those of the latest night before it, if there was one.

    Args:
        part: what the evaluation is called in MLflow among all of its night.

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
    tracking.tracker().log_step(run, index, found.metrics(series), now_ms, f"{part}.vs_previous")
    text = f"# {_label(trials)} beside {_label(before)} on {series}\n\n{describe(found)}\n"
    key = re.sub(r"[^a-z0-9-]+", "-", f"{campaign}-{series}-nightly-comparison".lower())
    create_markdown_artifact(text, key=key)
    if found.verdict == "worse":
        _tell(campaign, series, _label(trials), _label(before), found)


def night_before(store: ArtifactStore, trials: str) -> str | None:
    """Key of the trials that those of a night are compared with; None when there are none.

    They are of the latest night before it, and there of the newest checkpoint that is not newer than tonight's: beside
    the newest of a campaign any other may be evaluated in a night, and it is no news that an older one is worse.
    """
    tonight = NIGHT.match(trials)
    if tonight is None:
        return None
    found = (NIGHT.match(key) for key in store.list(tonight["folder"]))
    same = [night for night in found if night and night["folder"] == tonight["folder"]]  # other suites lie below it
    nights = [night for night in same if night["date"] < tonight["date"] and _place(night) <= _place(tonight)]
    return max(nights, key=lambda night: (night["date"], _place(night)))[0] if nights else None


def _place(night: re.Match[str]) -> int:
    """Of a checkpoint in the order in which a campaign makes them: the base model, SFT, the legs."""
    leg = LEG.fullmatch(night["checkpoint"])
    return int(leg[1]) if leg else 0 if night["checkpoint"] == "sft" else -1


def _label(trials: str) -> str:
    return trials.split("/")[-2]


def _tell(campaign: str, series: str, tonight: str, before: str, found: Comparison) -> None:
    get_run_logger().warning("%s on %s is worse than %s: %+.1f points", tonight, series, before, 100 * found.difference)
    emit_event(
        REGRESSED,
        resource={"prefect.resource.id": f"longshell.campaign.{campaign}", "prefect.resource.name": campaign},
        payload={"series": series, "evaluation": tonight, "previous": before, **found.to_json()},
    )
