"""A campaign against the memory of one machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from components.config import load
from components.errors import ConfigError
from components.planner import host, require
from components.planner.capacity import GIB
from components.planner.host import machine_memory

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
LARGE = ["model.hidden_size=2048", "model.num_hidden_layers=48", "model.num_experts=128"]


def test_the_miniature_fits_the_8_gb_that_it_asks_for() -> None:
    report = host(load(MINIATURE), 8 * 10**9)
    assert report.fits
    assert report.total < 4 * GIB
    require(load(MINIATURE), 8 * 10**9)


def test_what_cannot_fit_is_refused_with_the_arithmetic() -> None:
    config = load(MINIATURE, LARGE)
    with pytest.raises(ConfigError) as caught:
        require(config, 24 * GIB)
    message = str(caught.value)
    report = host(config, 24 * GIB)
    for part in (f"actor {report.terms['actor'] / GIB:.2f}", "over the 24.0 GiB of this machine", "decides"):
        assert part in message
    assert sum(report.terms.values()) == report.total


def test_terms_are_what_they_say() -> None:
    config = load(MINIATURE, ["ppo.actor.kind=muon", "ppo.actor.matrix_lr=0.01"])
    adam, muon = host(load(MINIATURE)).terms, host(config).terms
    assert adam["actor"] / 16 == muon["actor"] / 12 == adam["snapshot"] / 8
    assert adam["critic"] / 16 == adam["actor"] / 16 + 768 * 128  # it never ties its embedding
    wide = host(load(MINIATURE, ["sampler.dtype=bfloat16"])).terms
    assert adam["sampler caches"] == 2 * wide["sampler caches"] == 2 * 72 * 512 * 2 * 2 * 4 * 32 * 4
    remote = host(load(MINIATURE, ["sampler.engine=sglang", "sampler.urls=[http://a:1]"])).terms
    assert "samplers" not in remote


def test_a_containers_limit_counts() -> None:
    assert 0 < machine_memory() <= psutil.virtual_memory().total
