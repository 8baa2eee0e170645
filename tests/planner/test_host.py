"""A campaign against the memory of one machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from components.config import load
from components.errors import ConfigError
from components.planner import DeviceReport, assess, host, require
from components.planner.capacity import GIB
from components.planner.host import machine_memory

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
T1 = MINIATURE.with_name("t1-122b.yaml")
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
    assert adam["actor"] / 16 == muon["actor"] / 12 == adam["snapshots"] / 12
    assert adam["critic"] == adam["actor"]  # whose output layer is the embedding, and counts once
    untied = host(load(MINIATURE, ["model.tie_word_embeddings=false"])).terms
    assert untied["actor"] / 16 == untied["critic"] / 16 + 768 * 128  # a critic has a head in place of an output layer
    assert adam["commit"] == (adam["actor"] + adam["critic"]) * 3 / 4 + adam["snapshots"] * 2 / 3
    wide = host(load(MINIATURE, ["sampler.dtype=bfloat16"])).terms
    assert adam["sampler caches"] == 2 * wide["sampler caches"] == 2 * 72 * 512 * 2 * 2 * 4 * 32 * 4
    remote = host(
        load(MINIATURE, ["sampler.engine=sglang", "model.tie_word_embeddings=false", "sampler.urls=[http://a:1]"])
    ).terms
    assert "samplers" not in remote


def test_what_several_ranks_hold_counts_as_often() -> None:
    copies = host(load(MINIATURE, ["trainer.layout.dp=2"])).terms
    one = host(load(MINIATURE)).terms
    spread = host(load(MINIATURE, ["trainer.layout={dp: 2, ep: 2}"])).terms
    assert copies["actor"] == 2 * one["actor"]
    assert copies["snapshots"] == 2 * one["snapshots"]
    assert one["actor"] < spread["actor"] < copies["actor"]
    assert copies["commit"] == one["commit"], "every part is stored once"
    assert copies["trainer"] == 3 * one["trainer"]  # and the job that drives both


def test_what_is_recomputed_is_not_kept() -> None:
    kept, full = (host(load(MINIATURE, [f"trainer.recompute={how}"])).terms for how in ("none", "full"))
    assert full["activations"] < kept["activations"]


def test_a_campaign_on_gpus_is_held_against_one_of_them_in_its_own_layout() -> None:
    report = assess(load(T1), GIB)
    assert isinstance(report, DeviceReport)
    assert (report.layout.world, report.tokens, report.fits) == (128, 86_016, True)
    require(load(T1), GIB)
    require(load(MINIATURE.with_name("qwen3-30b-a3b.yaml")), GIB)
    papers = load(T1, ["trainer.layout={tp: 2, pp: 4, cp: 4, dp: 2, ep: 16}"])
    with pytest.raises(ConfigError, match=r"τ2 ρ4 κ4 δ2 η16 at 86,016 tokens, float32: .* over the 95 GiB of a device"):
        require(papers, 1 << 50)


def test_a_containers_limit_counts() -> None:
    assert 0 < machine_memory() <= psutil.virtual_memory().total
