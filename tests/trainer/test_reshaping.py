"""What one layout writes, any other continues: training states and Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from components.config import ModelConfig
from components.errors import CheckpointError
from components.records import Sample
from components.sampler.engine import open_engine
from components.trainer import Trainer
from components.trainer.megatron import MegatronTrainer, RemoteTrainer
from components.trainer.ranks import Ranks
from tests.conformance.trainer_suite import ADAM, CRITIC, MUON, current, items, same, weights_in
from tests.trainer.test_layouts import LAYOUTS, trainer_config

SHARDED = "tp2 ep2 distributed optimizer"
CHAIN = ("alone", "tp2", "pp2", "dp2 distributed optimizer", "ep2 alltoall", SHARDED, "cp2", "alone")
"""Each continues what the one before it wrote."""


def build(ranks: Ranks, model: ModelConfig, name: str, **more: Any) -> Trainer:
    if name == "alone":
        return MegatronTrainer(model, trainer_config(), **more)
    return RemoteTrainer(ranks, model, trainer_config(**LAYOUTS[name]), **more)


def step(trainer: Trainer, batch: list[Sample]) -> list[dict[str, float]]:
    learn = items(trainer, batch)
    metrics = [trainer.critic_step(learn)]
    trainer.rotate()
    return [*metrics, trainer.actor_step(learn, clip=0.2, temperature=0.9)]


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["tied", "untied"])
def test_a_state_is_continued_by_every_layout_in_turn(
    ranks: Ranks, model: ModelConfig, samples: list[Sample], tmp_path: Path, tied: bool
) -> None:
    model = model.model_copy(update={"tie_word_embeddings": tied})
    uninterrupted = build(ranks, model, "alone", actor=ADAM, critic=CRITIC, seed=3)
    for number, name in enumerate(CHAIN):
        trainer = build(ranks, model, name, actor=ADAM, critic=CRITIC, seed=3 if number == 0 else None)
        if number:
            trainer.load(tmp_path / str(number - 1))
        for expected, found in zip(step(uninterrupted, samples), step(trainer, samples), strict=True):
            assert found == pytest.approx(expected, rel=5e-5, abs=1e-6), name
        trainer.state().write(tmp_path / str(number))
    for left, right in zip(current(uninterrupted, samples), current(trainer, samples), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_the_momenta_of_muon_go_along(ranks: Ranks, model: ModelConfig, samples: list[Sample], tmp_path: Path) -> None:
    uninterrupted = build(ranks, model, "alone", actor=MUON, seed=3)
    for number, name in enumerate(("tp2 ep2", "pp2", "alone")):
        trainer = build(ranks, model, name, actor=MUON, seed=3 if number == 0 else None)
        if number:
            trainer.load(tmp_path / str(number - 1))
        expected, found = (t.sft_step(samples, lr_share=1.0, aux_loss_coef=0.0) for t in (uninterrupted, trainer))
        assert found == pytest.approx(expected, rel=5e-5), name
        trainer.state().write(tmp_path / str(number))


def test_every_part_is_stored_once_and_a_resumed_run_is_bit_equal_in_the_same_layout(
    ranks: Ranks, model: ModelConfig, samples: list[Sample], tmp_path: Path
) -> None:
    first = build(ranks, model, SHARDED, actor=ADAM, critic=CRITIC, seed=3)
    step(first, samples)
    first.state().write(tmp_path / "state")
    expected = step(first, samples)
    second = build(ranks, model, SHARDED, actor=ADAM, critic=CRITIC, seed=None)
    second.load(tmp_path / "state")
    assert step(second, samples) == expected
    stored = 0
    for file in (tmp_path / "state").glob("actor-*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            stored += sum(opened.get_tensor(key).numel() for key in opened.keys())  # noqa: SIM118
    alone = build(ranks, model, "alone")
    assert isinstance(alone, MegatronTrainer)
    assert stored == sum(parameter.numel() for parameter in alone.actor.parameters().values())


@pytest.mark.parametrize("name", ["tp2", "pp2", "ep2 alltoall"])
def test_a_folder_written_by_any_layout_is_read_by_all_that_read_such_folders(
    ranks: Ranks, model: ModelConfig, samples: list[Sample], tmp_path: Path, name: str
) -> None:
    alone = build(ranks, model, "alone", seed=5)
    alone.save_hf(tmp_path / "alone")
    trainer = build(ranks, model, name, seed=None)
    trainer.load_hf(tmp_path / "alone")
    trainer.save_hf(tmp_path / "laid out")
    wanted = weights_in(tmp_path / "alone")
    for found in (weights_in(tmp_path / "laid out"), dict(trainer.stream_hf())):
        assert found.keys() == wanted.keys()
        assert all(found[key].equal(tensor) for key, tensor in wanted.items())
    again = build(ranks, model, "alone", seed=None)
    again.load_hf(tmp_path / "laid out")
    assert same(current(alone, samples), current(again, samples))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "laid out")
    assert all(wanted[key].equal(tensor) for key, tensor in theirs.state_dict().items() if key in wanted)
    open_engine(tmp_path / "laid out", slots=1, context=64)


def test_a_rank_that_cannot_read_its_part_keeps_all_ranks_from_changing(
    ranks: Ranks, model: ModelConfig, samples: list[Sample], tmp_path: Path
) -> None:
    trainer = build(ranks, model, "pp2", actor=ADAM, critic=CRITIC, seed=3)
    trainer.state().write(tmp_path / "state")
    step(trainer, samples)
    before, values = current(trainer, samples), trainer.values(samples)
    # Only the second stage reads the second file.
    file = tmp_path / "state" / "actor_optimizer-00001.safetensors"
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], None):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        with pytest.raises(CheckpointError, match=file.name):
            trainer.load(tmp_path / "state")
        assert same(before, current(trainer, samples))
        assert same(values, trainer.values(samples))
        file.write_bytes(whole)
    trainer.load(tmp_path / "state")
    assert not same(before, current(trainer, samples))
