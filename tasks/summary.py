"""Flow task: a campaign's figures, as one table and one JSON object, kept in the store."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import prefect.runtime
from prefect import task
from prefect.artifacts import create_table_artifact

from components.artifacts import ArtifactStore
from components.config import CampaignConfig
from components.errors import StoreError
from tasks import tracking
from tasks.campaign import campaign_name, claim
from tasks.results import Checkpoint, Diagnosis, Score
from tasks.site import Site

COLUMNS = {
    "stage": "{}",
    "pass rate": "{:.1%}",
    "± error": "{:.1%}",
    "trials": "{}",
    "assertions": "{:.1%}",
    "turns": "{:.2f}",
    "engine gap": "{:.2e}",
    "cancelled": "{}",
    "minutes": "{:.1f}",
}
"""Columns of the table, with how the terminal shows them."""


@task(name="summarize")
def summarize(
    config: CampaignConfig, checkpoints: Sequence[Checkpoint], scores: Sequence[Score], diagnosis: Diagnosis
) -> dict[str, Any]:
    """The campaign's last line; with its table also kept under `campaigns/<name>/`, `results.json` last."""
    store, name = Site.current().store(), campaign_name(config)
    started_s = claim(config, store)
    records = _records(store, f"campaigns/{name}/rl/steps")
    final = scores[-1]
    results = {
        "seed": config.seed,
        "minutes": round((time.time() - started_s) / 60, 2),
        **{score.label: score.row() for score in scores if score.label in ("base", "sft")},
        "rl": final.row(),
        "engine_gap": _mean(records, "gap/engine_token_mean"),
        "drift": _worst(records, "tito/drift"),
        "cancelled": sum(checkpoint.cancelled for checkpoint in checkpoints),
        "launched": sum(checkpoint.launched for checkpoint in checkpoints),
    }
    table = [_row(config, checkpoint, score, records) for checkpoint, score in zip(checkpoints, scores, strict=True)]
    run = tracking.campaign_run(name, config, {})
    tracking.tracker().end(run)
    links = {"verdict": diagnosis.verdict, "report": store.address(diagnosis.report)}
    links |= {"prefect": str(prefect.runtime.flow_run.ui_url or ""), "mlflow": tracking.link(run) or ""}
    create_table_artifact(table, key=f"{name}-results", description=f"campaign {name}")
    if not store.exists(f"campaigns/{name}/results.json"):
        store.put_json(f"campaigns/{name}/table.json", {"rows": table, "links": links})
        store.put_json(f"campaigns/{name}/results.json", results)
    return results


def finished(config: CampaignConfig, store: ArtifactStore) -> tuple[dict[str, Any], str] | None:
    """The results of a campaign that has ended, and its table as text; None while it has not.

    Raises:
        StoreError: one of the two is lost or damaged.
    """
    prefix = f"campaigns/{campaign_name(config)}"
    if not store.exists(f"{prefix}/results.json"):
        return None
    try:
        table, results = (store.get_json(f"{prefix}/{name}.json") for name in ("table", "results"))
    except StoreError as error:
        advice = f"delete {prefix}/results.json: the same command makes both again, from the stages' results"
        raise type(error)(f"{error}; {advice}") from error
    links = {name: value for name, value in table["links"].items() if value}
    lines = [
        f"{name}: {value}" + " (with `make ui` up)" * str(value).startswith("http") for name, value in links.items()
    ]
    lines.insert(0, f"minutes: {results['minutes']:.1f} in all; of a row, those that made its checkpoint")
    return results, "\n".join([render(table["rows"]), "", *lines])


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as aligned text. What an older campaign did not tell of a row is a dash."""
    cells = [list(COLUMNS), *([_text(row.get(name), form) for name, form in COLUMNS.items()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(
    config: CampaignConfig, checkpoint: Checkpoint, score: Score, records: Mapping[int, Mapping[str, float | None]]
) -> dict[str, Any]:
    first = checkpoint.step - config.rl.leg_steps
    own = {step: metrics for step, metrics in records.items() if first <= step < checkpoint.step}
    return {
        "stage": checkpoint.label,
        "pass rate": score.pass_rate,
        "± error": score.stderr,
        "trials": score.n,
        "assertions": score.assertions_passed,
        "turns": score.turns_mean,
        "engine gap": _mean(own, "gap/engine_token_mean"),
        "cancelled": f"{checkpoint.cancelled}/{checkpoint.launched}" if checkpoint.launched else None,
        "minutes": round(checkpoint.seconds / 60, 2),
    }


def _records(store: ArtifactStore, prefix: str) -> dict[int, Mapping[str, float | None]]:
    keys = [key for key in store.list(prefix) if key.endswith("/record.json")]
    records = [store.get_json(key) for key in keys]
    return {record["step"]: record["metrics"] for record in records}


def _measured(records: Mapping[int, Mapping[str, float | None]], name: str) -> list[float]:
    values = [metrics.get(name) for metrics in records.values()]
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(records: Mapping[int, Mapping[str, float | None]], name: str) -> float | None:
    values = _measured(records, name)
    return sum(values) / len(values) if values else None


def _worst(records: Mapping[int, Mapping[str, float | None]], name: str) -> float | None:
    return max(_measured(records, name), default=None)


def _text(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)
