"""What one GPU holds during a leg of RL, term by term."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import CampaignConfig, load
from components.planner import Plan, capacity, device
from components.planner.capacity import GIB
from components.planner.shape import ModelShape

T1 = Path(__file__).parents[2] / "configs" / "t1-122b.yaml"
PAPER = "trainer.layout={tp: 2, pp: 4, cp: 4, dp: 2, ep: 16}"


def t1(*overrides: str) -> CampaignConfig:
    return load(T1, [PAPER, *overrides])


def test_the_papers_layout_holds_sixteen_bytes_a_parameter_of_each_model_and_twelve_of_snapshots() -> None:
    report = device(t1(), 95)
    shape = ModelShape.of(t1().model)
    embedding = 248_320 * 3_072
    experts = shape.expert_parameters / (4 * 16)
    layers = (shape.dense_parameters - 2 * embedding) / 4
    dense = (layers + embedding) / 2
    # Experts of a stage lie on 16 ranks: none has a second copy to share its moments with. The dense part has eight.
    assert report.terms["actor"] == pytest.approx(8 * (experts + dense) + 8 * (experts + dense / 8))
    bare = layers / 2  # the critic's last stage has a head of one row where the actor has an output layer
    assert report.terms["critic"] == pytest.approx(8 * (experts + bare) + 8 * (experts + bare / 8))
    assert report.terms["snapshots"] == pytest.approx(4 * 3 * (experts + dense)), (
        "two versions, and the current weights"
    )
    assert report.terms["logits"] == 8 * 248_320 * 86_016 / 4 / 2
    assert report.stage == "last"
    assert sum(report.terms.values()) == report.total
    assert report.total / GIB == pytest.approx(138.4, abs=0.1)


def test_it_is_more_than_eq_21_counts_for_one_model_in_bf16() -> None:
    config = t1()
    paper = capacity(Plan(config.trainer.layout, 95), ModelShape.of(config.model), 86_016)
    assert paper.fits
    assert not device(config, 95).fits
    assert device(config, 139).fits


def test_without_a_critic_its_sixteen_bytes_are_not_there() -> None:
    baseline = t1("ppo.algorithm=grpo", "ppo.critic=null", "ppo.group_size=2")
    with_critic, without = device(t1(), 95).terms, device(baseline, 95).terms
    assert "critic" not in without
    assert with_critic["actor"] == without["actor"]


def test_moments_are_whole_on_every_rank_unless_the_optimizer_is_distributed() -> None:
    shared, whole = (device(t1(f"trainer.distributed_optimizer={on}"), 95).terms for on in ("true", "false"))
    dense = shared["snapshots"] / 12 - ModelShape.of(t1().model).expert_parameters / 64
    assert whole["actor"] - shared["actor"] == pytest.approx(8 * dense * 7 / 8)


def test_a_snapshot_more_is_a_set_of_weights_more() -> None:
    two, three = (device(t1(f"rollout.max_staleness={n}"), 95).terms["snapshots"] for n in (2, 3))
    assert three == pytest.approx(two * 4 / 3)
    cancelled = device(t1("rollout.tail=cancel"), 95).terms["snapshots"]
    assert cancelled == pytest.approx(two * 2 / 3)


def test_the_stage_that_needs_most_decides() -> None:
    """Short micro-batches have small logits, and a first stage keeps the inputs of every one in flight."""
    first = device(t1("trainer.recompute=none"), 95)
    assert first.stage == "first"
    assert first.terms["logits"] == 0
    assert device(load(T1, ["trainer.layout={tp: 2, cp: 8, dp: 8, ep: 128}"]), 95).stage == "only"
