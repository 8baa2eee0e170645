"""Flow tasks of curation: the pool of tasks, generated or imported, gated by execution, audited where that is asked.

Without `pool.audit` it is one flow task and one job. With it each of the six stages is one of each, so that a stage
that failed is repeated alone, and a person sees after each of them what was left out and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact

from components.config import CampaignConfig
from tasks import tracking
from tasks.asks import Ask
from tasks.campaign import campaign_name
from tasks.drive import STAGE, Driven, drive
from tasks.results import Pool

TOLD = 500
"""Rows of a table that are shown in Prefect; the job's result holds all of them."""
COUNTS = ("accepted", "borderline", "rejected", "unjudged", "disagreements")
COST = ("answers", "bad_answers", "prompt_tokens", "completion_tokens", "cost_usd")


def curate(config: CampaignConfig) -> Pool:
    """Makes the campaign's pool, or finds it made. Called within a flow: the part of its graph that makes the pool."""
    if config.pool.audit is None:
        return whole(config)
    gathered = aggregate(config)
    keys = {"candidates": gathered["candidates"], "left_out": gathered["left_out"]}
    keys["gates"] = gates(config, keys)["gates"]
    audited = audit(config, keys)
    keys["assessments"], spent = audited["assessments"], audited["spent_usd"]
    if config.pool.audit.repair is not None:
        mended = repair(config, {**keys, "spent_usd": spent})
        keys["repairs"], keys["repaired"], spent = mended["repairs"], mended["repaired"], mended["spent_usd"]
        if mended["mended"]:
            again = reaudit(config, {**keys, "spent_usd": spent})
            keys["reassessments"], spent = again["assessments"], again["spent_usd"]
    return select(config, {**keys, "spent_usd": spent})


@task(name="curate", **STAGE)
def whole(config: CampaignConfig) -> Pool:
    """The pool in one job."""
    return _pool(config, drive(config, Ask("curate", 0, {})))


@task(name="aggregate", **STAGE)
def aggregate(config: CampaignConfig) -> Mapping[str, Any]:
    """Gathers the candidates."""
    driven = drive(config, Ask("aggregate", 0, {}))
    _rejections(config, "aggregate-rejections", driven.result["rejections"])
    return _ended(driven)


@task(name="gates", **STAGE)
def gates(config: CampaignConfig, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Executes them."""
    driven = drive(config, Ask("gates", 0, keys))
    _rejections(config, "gates-rejections", driven.result["rejections"])
    _flags(config, "gates-flags", driven.result["flags"])
    return _ended(driven)


@task(name="audit", **STAGE)
def audit(config: CampaignConfig, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Has them judged."""
    return _audited(config, drive(config, Ask("audit", 0, keys)), "audit")


@task(name="repair", **STAGE)
def repair(config: CampaignConfig, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Has instructions rewritten."""
    driven = drive(config, Ask("repair", 0, keys))
    row = {name: driven.result[name] for name in ("mended", "failed", "hopeless", *COST)}
    create_table_artifact([row], key=f"{campaign_name(config)}-repair")
    return _ended(driven)


@task(name="reaudit", **STAGE)
def reaudit(config: CampaignConfig, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Has what was repaired judged again."""
    return _audited(config, drive(config, Ask("reaudit", 0, keys)), "reaudit")


@task(name="select", **STAGE)
def select(config: CampaignConfig, keys: Mapping[str, Any]) -> Pool:
    """Selects the pool from what was accepted."""
    driven = drive(config, Ask("select", 0, keys))
    result, name = driven.result, campaign_name(config)
    create_table_artifact(result["composition"], key=f"{name}-composition", description="beside the paper's pool")
    return _pool(config, driven)


def _pool(config: CampaignConfig, driven: Driven) -> Pool:
    """Shows a finished pool to MLflow and Prefect."""
    result = driven.result
    pool = Pool(result["pool"], result["digest"], result["accepted"], result["rejected"], result.get("seconds", 0.0))
    name = campaign_name(config)
    tracking.tracker().log_pool(driven.parent, f"{name}-pool", pool.digest, driven.store.address(pool.key))
    tracking.tracker().end(driven.run)
    columns = ("accepted", "rejected", "train", "heldout", "digest")
    create_table_artifact([{column: result[column] for column in columns}], key=f"{name}-pool")
    if "assertions" in result:  # not in that of an older job
        create_table_artifact([result["assertions"]], key=f"{name}-assertions", description="assertions a task")
    _flags(config, "flags", result.get("flags", ()))
    _rejections(config, "rejections", result.get("rejections", ()))
    return pool


def _audited(config: CampaignConfig, driven: Driven, stage: str) -> Mapping[str, Any]:
    result, name = driven.result, campaign_name(config)
    create_table_artifact([{column: result[column] for column in (*COUNTS, *COST)}], key=f"{name}-{stage}")
    _table(f"{name}-{stage}-reasons", result["told"], "tasks are not accepted, or contradict what was executed")
    return _ended(driven)


def _ended(driven: Driven) -> Mapping[str, Any]:
    tracking.tracker().end(driven.run)
    return driven.result


def _rejections(config: CampaignConfig, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    _table(f"{campaign_name(config)}-{key}", rows, "tasks are not in the pool")


def _flags(config: CampaignConfig, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    _table(f"{campaign_name(config)}-{key}", rows, "signs against tasks that the gates accepted; none is a proof")


def _table(key: str, rows: Sequence[Mapping[str, Any]], words: str) -> None:
    if rows:
        told = f"{len(rows)} {words}" + (f"; the first {TOLD}" if len(rows) > TOLD else "")
        create_table_artifact([dict(row) for row in rows[:TOLD]], key=key, description=told)
