"""Eq 21, with the paper's own arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from components.config import LayoutConfig
from components.errors import ConfigError
from components.planner import ModelShape, Plan, capacity, layouts
from components.planner.capacity import GIB
from tests.planner.conftest import QWEN3_30B, QWEN35_122B

SHAPE = ModelShape.of(QWEN35_122B)
PAPER = replace(SHAPE, expert_parameters=116_000_000_000, dense_parameters=5_860_000_000)
"""With the paper's P_e and P_d, rounded as it prints them."""
WALL = 86_016
LAYOUT = LayoutConfig(tp=2, pp=4, cp=4, dp=2, ep=16)
T1 = Plan(LAYOUT, memory_gib=95)
TWO_WAY = Plan(LAYOUT.model_copy(update={"cp": 2, "dp": 4}), memory_gib=95)


def test_the_papers_layout_needs_66_6_gib_before_activations() -> None:
    last = capacity(T1, PAPER, WALL).stages[-1]
    assert LAYOUT.world == 64
    assert (last.expert_weights + last.dense_weights) / GIB == pytest.approx(18.3, abs=0.05)
    assert (last.expert_optimizer + last.dense_optimizer) / GIB == pytest.approx(28.4, abs=0.05)
    assert last.logits / GIB == pytest.approx(19.9, abs=0.05)
    rest = last.activations + last.overhead
    assert (last.total - rest) / GIB == pytest.approx(66.6, abs=0.05)


def test_at_the_84k_wall_two_way_context_exceeds_and_four_way_is_admitted() -> None:
    two = capacity(TWO_WAY, PAPER, WALL)
    four = capacity(T1, PAPER, WALL)
    assert two.plan.layout.world == four.plan.layout.world == 64
    assert not two.fits
    assert four.fits
    assert two.decides == "logits"
    assert two.worst.name == four.worst.name == "last"
    assert two.worst.logits / GIB == pytest.approx(39.8, abs=0.05)
    assert two.worst.logits / two.budget == pytest.approx(0.42, abs=0.005)  # the paper calls it a third
    assert two.max_tokens < WALL < four.max_tokens


def test_no_layout_of_64_devices_takes_the_wall_with_less_than_four_way_context() -> None:
    found = layouts(SHAPE, 64, WALL, memory_gib=95)
    assert T1 in [report.plan for report in found if report.fits]
    assert {report.plan.layout.cp for report in found} >= {1, 2, 4, 8}
    assert min(report.plan.layout.cp for report in found if report.fits) == 4
    assert found[0].plan.layout.cp == 4
    assert max(report.plan.layout.tp for report in found) == 2  # two key-value heads


sizes = st.sampled_from([1, 2, 4, 8, 16])


@given(sizes, sizes, sizes, sizes, st.integers(1, 300_000))
def test_the_experts_optimizer_depends_on_the_number_of_devices_only(
    tensor: int, pipeline: int, context: int, data: int, tokens: int
) -> None:
    expert = math.gcd(256, tensor * context * data)
    plan = Plan(LayoutConfig(tp=tensor, pp=pipeline, cp=context, dp=data, ep=expert))
    alone = Plan(LayoutConfig(dp=plan.layout.world))
    report, other = capacity(plan, PAPER, tokens), capacity(alone, PAPER, tokens)
    assert {stage.expert_optimizer for stage in report.stages} == {12 * 116e9 / plan.layout.world}
    assert other.worst.expert_optimizer == report.worst.expert_optimizer


@given(sizes, sizes, sizes, sizes, st.integers(1, 300_000), st.floats(1, 2_000))
def test_terms_add_up_and_the_longest_sequence_is_the_border_of_the_verdict(
    tensor: int, pipeline: int, context: int, data: int, tokens: int, memory: float
) -> None:
    plan = Plan(LayoutConfig(tp=tensor, pp=pipeline, cp=context, dp=data), memory)
    report = capacity(plan, SHAPE, tokens)
    assert len(report.stages) == (1 if pipeline == 1 else 2)
    for stage in report.stages:
        weights, optimizers = stage.expert_weights + stage.dense_weights, stage.expert_optimizer + stage.dense_optimizer
        parts = weights + optimizers + stage.activations + stage.logits + stage.overhead
        assert stage.total == pytest.approx(parts)
        assert stage.total <= report.total
    others = [value for name, value in report.worst.terms.items() if name != report.decides]
    assert getattr(report.worst, report.decides) >= max(others)
    assert report.fits == (tokens <= report.max_tokens)
    assume(report.max_tokens > 0)
    assert capacity(plan, SHAPE, report.max_tokens).fits
    assert not capacity(plan, SHAPE, report.max_tokens + 1).fits


def test_a_measured_activation_replaces_the_estimate() -> None:
    plan = replace(T1, activation_bytes_per_token=1e6)
    for stage in capacity(plan, SHAPE, WALL).stages:
        assert stage.activations == 1e6 * WALL / 4


def test_a_stage_in_front_holds_the_inputs_of_every_micro_batch_in_flight() -> None:
    first, last = capacity(T1, SHAPE, 4_096).stages
    kept = SHAPE.kept_bytes_per_token * 12 * 4_096 / 4 / 2
    assert first.activations - last.activations == pytest.approx(3 * kept)
    assert first.logits == 0 < last.logits


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"layout": LayoutConfig(pp=5)}, "pp 5 does not divide 48 layers"),
        ({"layout": LayoutConfig(ep=3, dp=3)}, "ep 3 does not divide 256 experts"),
        ({"memory_gib": 0.0}, "not positive"),
    ],
)
def test_a_layout_that_cannot_be_cut_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        capacity(replace(T1, **change), SHAPE, WALL)


def test_the_smaller_model_fits_two_nodes_at_its_context() -> None:
    found = layouts(ModelShape.of(QWEN3_30B), 16, 40_960, memory_gib=80)
    assert found[0].fits
    assert not layouts(ModelShape.of(QWEN3_30B), 4, 40_960, memory_gib=80)[0].fits


def test_the_arithmetic_is_in_the_explanation() -> None:
    text = capacity(TWO_WAY, PAPER, WALL).explain()
    for part in ("logits 39.8", "over the 95 GiB", "logits decides", "86,016 tokens", "τ2 ρ4 κ2 δ4 η16"):
        assert part in text
