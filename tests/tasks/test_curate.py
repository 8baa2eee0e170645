"""Which stages make a pool, and what each is handed. The graph alone, without services."""

from __future__ import annotations

from typing import Any

import pytest

from components.cluster import REPOSITORY
from components.config import CampaignConfig, load
from tasks import curate as curation
from tasks.results import Pool

POOL = Pool("pool", "d", 9, 1, 0.0)
Stages = tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]
"""What each stage gives, and the calls."""
AUDIT = 'pool.audit={judge: {base_url: "http://localhost/v1", model: m}}'


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    noted: list[tuple[str, dict[str, Any]]] = []
    gives: dict[str, Any] = {
        "whole": POOL,
        "aggregate": {"candidates": "c", "left_out": "l"},
        "gates": {"gates": "g"},
        "audit": {"assessments": "a", "spent_usd": 1.0},
        "repair": {"repairs": "r", "repaired": "t", "mended": 2, "spent_usd": 2.0},
        "reaudit": {"assessments": "b", "spent_usd": 3.0},
        "select": POOL,
    }

    def fake(name: str) -> Any:
        def call(config: CampaignConfig, keys: dict[str, Any] | None = None) -> Any:
            noted.append((name, dict(keys or {})))
            return gives[name]

        return call

    for name in gives:
        monkeypatch.setattr(curation, name, fake(name))
    return gives, noted


def config(*overrides: str) -> CampaignConfig:
    return load(REPOSITORY / "configs" / "miniature.yaml", overrides)


def test_without_an_audit_a_pool_is_one_job(stages: Stages) -> None:
    assert curation.curate(config()) == POOL
    assert stages[1] == [("whole", {})]


def test_with_an_audit_each_stage_is_handed_what_those_before_it_made(stages: Stages) -> None:
    assert curation.curate(config(AUDIT)) == POOL
    gathered = {"candidates": "c", "left_out": "l"}
    judged = {**gathered, "gates": "g", "assessments": "a"}
    mended = {**judged, "repairs": "r", "repaired": "t"}
    assert stages[1] == [
        ("aggregate", {}),
        ("gates", gathered),
        ("audit", {**gathered, "gates": "g"}),
        ("repair", {**judged, "spent_usd": 1.0}),
        ("reaudit", {**mended, "spent_usd": 2.0}),
        ("select", {**mended, "reassessments": "b", "spent_usd": 3.0}),
    ]


def test_nothing_is_audited_again_where_nothing_was_repaired(stages: Stages) -> None:
    stages[0]["repair"] |= {"mended": 0}
    curation.curate(config(AUDIT))
    assert [name for name, _ in stages[1][3:]] == ["repair", "select"]
    stages[1].clear()
    curation.curate(config(AUDIT, "pool.audit.repair=null"))
    assert [name for name, _ in stages[1]] == ["aggregate", "gates", "audit", "select"]
    assert stages[1][-1][1]["spent_usd"] == 1.0
