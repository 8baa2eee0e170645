"""Qwen3.5-MoE in every layout of two processes computes and learns what it does in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from components.config import TrainerConfig
from components.records import Sample
from components.trainer import Trainer
from components.trainer.megatron import MegatronTrainer, RemoteTrainer
from components.trainer.ranks import Ranks
from tests.conformance.trainer_suite import ADAM, CRITIC, MUON, current, random_sample
from tests.trainer.conftest import HYBRID
from tests.trainer.test_layouts import LAYOUTS, Run, assert_same, learn, of_the_night, trainer_config


def config(name: str = "") -> TrainerConfig:
    return trainer_config(micro_batch_tokens=256, **LAYOUTS.get(name, {}))


@pytest.fixture(scope="module")
def batch() -> list[Sample]:
    """Streams that two context ranks cut without padding, some inside a chunk of the delta rule; two micro-batches of
    256 tokens in every layout."""
    generator = np.random.default_rng(7)
    return [random_sample(generator, HYBRID, length) for length in (121, 9, 61, 33, 5, 49, 97)]


def slowly_forgetting(folder: Path, config: TrainerConfig) -> Path:
    """Fresh weights that forget slowly. Those of a head that forgets at once have gradients of nothing but rounding,
    which Adam would turn into steps of full size."""
    trainer = MegatronTrainer(HYBRID, config, seed=3)
    decays = {name: p - 3 for name, p in trainer.actor.parameters().items() if name.endswith("A_log")}
    assert len(decays) == 3
    trainer.actor.set_parameters(decays)
    trainer.save_hf(folder)
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slowly_forgetting(tmp_path_factory.mktemp("start") / "model", config())


def loaded(trainer: Trainer, start: Path) -> Trainer:
    trainer.load_hf(start)
    trainer.load_hf(start, what="critic_from_actor")
    return trainer


@pytest.fixture(scope="module")
def alone(batch: list[Sample], start: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    trainer = MegatronTrainer(HYBRID, config(), actor=ADAM, critic=CRITIC)
    return learn(loaded(trainer, start), batch, tmp_path_factory.mktemp("alone") / "model")


@pytest.mark.parametrize("name", of_the_night(LAYOUTS, ["cp2"]))
def test_a_layout_computes_and_learns_what_one_process_does(
    ranks: Ranks, batch: list[Sample], start: Path, alone: Run, tmp_path: Path, name: str
) -> None:
    trainer = RemoteTrainer(ranks, HYBRID, config(name), actor=ADAM, critic=CRITIC)
    # Twice as deep as the plain model: rounding has further to grow. A gradient that a rank forgot to add would move a
    # weight by a thousandth at each of the steps.
    assert_same(alone, learn(loaded(trainer, start), batch, tmp_path / "model"), atol=1e-5, rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["tp2", "cp2"])
def test_muon_orthogonalises_whole_matrices_wherever_their_parts_are(
    ranks: Ranks, batch: list[Sample], start: Path, name: str
) -> None:
    one = loaded(MegatronTrainer(HYBRID, config(), actor=MUON, critic=CRITIC), start)
    two = loaded(RemoteTrainer(ranks, HYBRID, config(name), actor=MUON, critic=CRITIC), start)
    for _ in range(2):
        metrics = [trainer.sft_step(batch, lr_share=1.0, aux_loss_coef=0.0) for trainer in (one, two)]
        assert metrics[1] == pytest.approx(metrics[0], rel=2e-5)
    for left, right in zip(current(one, batch), current(two, batch), strict=True):
        np.testing.assert_allclose(left, right, atol=5e-5)
