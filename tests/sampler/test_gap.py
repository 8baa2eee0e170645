"""The sampler against the trainer: nothing is between them in float32, and what routing adds is what replay removes."""

from __future__ import annotations

import pytest

from benchmarks.gap import Case, measure, random_case
from components.config import ModelConfig

MODEL = ModelConfig(num_hidden_layers=2, num_experts=8, num_experts_per_tok=2)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return random_case(0, tmp_path_factory.mktemp("gap") / "model", MODEL)


def test_a_float32_sampler_and_the_trainer_agree_to_a_millionth(case: Case) -> None:
    figures = measure(case, MODEL, "float32", "float32")
    assert figures["free"]["token_mean"] < 1e-6
    assert figures["replayed"]["token_mean"] < 1e-6
    assert figures["flipped_choices"] == 0


def test_replay_removes_the_gap_of_a_bfloat16_router(case: Case) -> None:
    figures = measure(case, MODEL, "float32", "bfloat16")
    free, replayed = figures["free"], figures["replayed"]
    assert figures["flipped_choices"] > 0
    assert free["token_mean"] > 1e-4, "the router does not run in bfloat16"
    assert replayed["token_mean"] <= 0.7 * free["token_mean"]
    assert replayed["k3"] <= 0.3 * free["k3"]
