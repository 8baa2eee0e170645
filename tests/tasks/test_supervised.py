"""What SFT is handed. The graph alone, without services."""

from __future__ import annotations

from typing import Any

import pytest

from components.cluster import REPOSITORY
from components.config import CampaignConfig, load
from tasks import supervised
from tasks.results import Checkpoint, Pool, Samples

POOL, BASE, SAMPLES = Pool("pool", "d", 9, 1, 0.0), Checkpoint("base", "base", 0), Samples("samples", 4, 8)


def config(*overrides: str) -> CampaignConfig:
    return load(REPOSITORY / "configs" / "miniature.yaml", overrides)


def test_trials_are_sampled_only_where_sft_learns_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(supervised, "rejection", lambda _, *told: calls.append(told) or SAMPLES)
    monkeypatch.setattr(supervised, "tuned", lambda _, *told: calls.append(told) or Checkpoint("sft", "sft", 0))
    supervised.sft(config(), POOL, BASE)
    assert calls == [(POOL, BASE, None)]
    calls.clear()
    supervised.sft(config("sft.demonstrations=null", "sft.rejection={attempts: 2}"), POOL, BASE)
    assert calls == [(POOL, BASE), (POOL, BASE, SAMPLES)]
