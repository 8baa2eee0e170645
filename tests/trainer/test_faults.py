"""Faults that trainers of other projects had, by project and number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from components.config import CriticConfig, ModelConfig, OptimizerConfig, TrainerConfig
from components.errors import RecordError
from components.records import Routing, Sample
from components.rollout import Ledger, load_batch, save_batch
from components.trainer.megatron import MegatronTrainer
from tests.conformance.trainer_suite import ADAM, current, items, same

PERMUTATIONS: dict[str, Callable[[Routing], Routing]] = {
    "reversed": lambda rows: rows[::-1],
    "shifted by one": lambda rows: np.roll(rows, 1, axis=0),
    "layers swapped": lambda rows: rows[:, ::-1],
    "two rows swapped": lambda rows: rows[[1, 0, *range(2, len(rows))]],
}


@pytest.mark.parametrize("permute", PERMUTATIONS.values(), ids=PERMUTATIONS.keys())
def test_routing_rows_permuted_in_the_right_shape_are_not_replayed(
    model: ModelConfig, samples: list[Sample], permute: Callable[[Routing], Routing]
) -> None:
    # miles #3146: R3 rows in batch-first order while the router is sequence-first; the shapes agreed.
    trainer = MegatronTrainer(model, TrainerConfig(), actor=ADAM)
    first = samples[0]
    assert first.routing is not None
    broken = replace(first, routing=np.ascontiguousarray(permute(first.routing)))
    with pytest.raises(RecordError, match=r"trial-40/0: its routing has checksum .* changed or permuted"):
        current(trainer, [samples[1], broken])
    assert len(current(trainer, [broken], replay=False)) == 1


def test_routing_of_another_sample_of_the_same_length_is_not_replayed(
    model: ModelConfig, samples: list[Sample]
) -> None:
    trainer = MegatronTrainer(model, TrainerConfig(), actor=ADAM)
    first = samples[0]
    assert first.routing is not None
    twin = replace(first, routing=(first.routing + 1) % model.num_experts)
    with pytest.raises(RecordError, match="changed or permuted"):
        current(trainer, [twin])


def test_routing_is_replayed_from_a_batch_file_only_with_the_checksum_of_its_capture(
    model: ModelConfig, samples: list[Sample], tmp_path: Path
) -> None:
    trainer = MegatronTrainer(model, TrainerConfig(), actor=ADAM)
    unchecked = replace(samples[1], routing_checksum=None)
    save_batch(tmp_path / "batch", [], [samples[0], unchecked], [], Ledger(0))
    good, bad = load_batch(tmp_path / "batch").samples
    np.testing.assert_array_equal(current(trainer, [good])[0], current(trainer, samples[:1])[0])
    with pytest.raises(RecordError, match="trial-9/0 has routing without the checksum"):
        current(trainer, [bad])


def test_a_warm_started_critic_brings_its_weights_and_nothing_of_another_runs_optimizer(
    model: ModelConfig, samples: list[Sample], tmp_path: Path
) -> None:
    # NeMo-RL #4213/#3821: a warm-started critic went on with another run's Adam moments and learning rate step.
    warming = CriticConfig(optimizer=OptimizerConfig(lr=1e-2, weight_decay=0, warmup_steps=50))

    def build(seed: int) -> MegatronTrainer:
        return MegatronTrainer(model, TrainerConfig(), actor=ADAM, critic=warming, seed=seed)

    first = build(0)
    for _ in range(3):
        first.critic_step(items(first, samples))
    first.save_hf(tmp_path / "critic", what="critic")
    warm, other = build(1), build(2)
    for trainer in (warm, other):
        trainer.load_hf(tmp_path / "critic", what="critic")
        assert same(trainer.values(samples), first.values(samples))
    fresh, continued = items(warm, samples), items(first, samples)
    warm.critic_step(fresh)
    other.critic_step(fresh)
    assert same(warm.values(samples), other.values(samples))
    first.critic_step(continued)
    step = [
        np.abs(np.concatenate(t.values(samples)) - np.concatenate([i.old_values_N for i in fresh])).max()
        for t in (warm, first)
    ]
    assert step[0] < step[1]  # the first step of a fresh schedule, not the fourth of another run's
