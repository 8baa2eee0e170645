"""Layouts that need four processes compute and learn what one process does (`make layouts`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.config import ModelConfig, TrainerConfig
from components.records import Sample
from components.trainer.megatron import MegatronTrainer, RemoteTrainer
from components.trainer.ranks import Ranks
from tests.conformance.trainer_suite import ADAM, CRITIC, random_sample
from tests.trainer.conftest import HYBRID, MODEL
from tests.trainer.test_hybrid_layouts import loaded, slowly_forgetting
from tests.trainer.test_layouts import Run, assert_same, learn, trainer_config

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2 pp2": {"layout": {"tp": 2, "pp": 2}},
    "tp2 pp2 ep2": {"layout": {"tp": 2, "pp": 2, "ep": 2}, "dispatcher": "alltoall"},
    "tp2 cp2": {"layout": {"tp": 2, "cp": 2}},
    "tp2 cp2 ep4": {"layout": {"tp": 2, "cp": 2, "ep": 4}, "dispatcher": "alltoall"},
    "tp2 dp2": {"layout": {"tp": 2, "dp": 2}},
    "tp2 dp2 ep2": {"layout": {"tp": 2, "dp": 2, "ep": 2}},
    "tp2 dp2 ep4 distributed optimizer": {
        "layout": {"tp": 2, "dp": 2, "ep": 4},
        "dispatcher": "alltoall",
        "distributed_optimizer": True,
    },
    "pp2 dp2": {"layout": {"pp": 2, "dp": 2}},
    "pp2 dp2 ep2 full recompute": {"layout": {"pp": 2, "dp": 2, "ep": 2}, "recompute": "full"},
    "pp2 cp2": {"layout": {"pp": 2, "cp": 2}},
    "cp2 dp2": {"layout": {"cp": 2, "dp": 2}},
    "cp2 dp2 ep4 distributed optimizer": {"layout": {"cp": 2, "dp": 2, "ep": 4}, "distributed_optimizer": True},
    "cp4": {"layout": {"cp": 4}},
    "dp4 ep2": {"layout": {"dp": 4, "ep": 2}, "dispatcher": "alltoall"},
    "dp4 ep4": {"layout": {"dp": 4, "ep": 4}},
}
HYBRID_LAYOUTS = {name: LAYOUTS[name] for name in ("tp2 pp2", "tp2 cp2 ep4", "pp2 dp2", "cp2 dp2", "cp4")} | {
    "pp4": {"layout": {"pp": 4}}
}


def batch_of(model: ModelConfig) -> list[Sample]:
    """Streams that fill four micro-batches of 128 tokens, in pieces of sixteen: no layout pads one or cuts a batch
    another way, so that the load-balancing loss is a mean over the same four everywhere.

    Drawn so that no gradient of an element is nothing but rounding, which Adam would turn into steps of full size.
    """
    generator = np.random.default_rng(11)
    return [random_sample(generator, model, length + 1) for length in (64, 112, 48, 96, 16, 80, 48, 32, 16)]


def config(settings: dict[str, Any]) -> TrainerConfig:
    return trainer_config(**settings)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    trainer = MegatronTrainer(MODEL, config({}), actor=ADAM, critic=CRITIC, seed=3)
    return learn(trainer, batch_of(MODEL), tmp_path_factory.mktemp("alone") / "model")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_of_four_computes_and_learns_what_one_process_does(
    four_ranks: Ranks, alone: Run, tmp_path: Path, name: str
) -> None:
    trainer = RemoteTrainer(four_ranks, MODEL, config(LAYOUTS[name]), actor=ADAM, critic=CRITIC, seed=3)
    assert_same(alone, learn(trainer, batch_of(MODEL), tmp_path / "model"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slowly_forgetting(tmp_path_factory.mktemp("start") / "model", config({}))


@pytest.fixture(scope="module")
def hybrid_alone(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    trainer = MegatronTrainer(HYBRID, config({}), actor=ADAM, critic=CRITIC)
    return learn(loaded(trainer, start), batch_of(HYBRID), tmp_path_factory.mktemp("alone") / "model")


@pytest.mark.parametrize("name", HYBRID_LAYOUTS)
def test_a_layout_of_four_computes_and_learns_what_one_process_does_with_delta_nets(
    four_ranks: Ranks, start: Path, hybrid_alone: Run, tmp_path: Path, name: str
) -> None:
    trainer = RemoteTrainer(four_ranks, HYBRID, config(HYBRID_LAYOUTS[name]), actor=ADAM, critic=CRITIC)
    assert_same(hybrid_alone, learn(loaded(trainer, start), batch_of(HYBRID), tmp_path / "model"), atol=2e-5, rtol=1e-5)
