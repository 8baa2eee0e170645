"""Faults that trainers of other projects had, by project and number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from components.config import CriticConfig, ModelConfig, OptimizerConfig, TrainerConfig
from components.errors import RecordError
from components.records import Routing, Sample
from components.rollout import Ledger, load_batch, save_batch
from components.routing import checksum
from components.trainer.batching import micro_batches
from components.trainer.megatron import MegatronTrainer
from components.trainer.sharding import Share
from tests.conformance.trainer_suite import ADAM, current, items, same
from tests.trainer.test_replay import logits, record

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


def two_streams(model: ModelConfig) -> list[Sample]:
    """Of three tokens; the experts of their rows are e and e + 1, with e = 0, 1 in the first and 2, 3 in the second."""

    def stream(tokens: list[int], first: list[int]) -> Sample:
        rows = np.stack([np.array(first, np.uint8), (np.array(first, np.uint8) + 1) % model.num_experts], -1)
        routing = np.repeat(rows[:, None], model.num_hidden_layers, axis=1)
        mask = np.array([False, True, True])
        logprobs = np.where(mask, -1, 0).astype(np.float32)
        return Sample(np.array(tokens, np.int32), mask, logprobs, routing, "t", routing_checksum=checksum(routing))

    return [stream([5, 70, 9], [0, 1]), stream([31, 8, 4], [2, 3])]


def test_the_router_is_given_the_row_of_the_token_whose_scores_it_sees(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # miles #3146: rows [[0,1,-1],[2,3,-1]] came stream by stream, the router took its tokens position by position, as
    # [0,2,1,3,-1,-1], and the shapes agreed. So a row is held here against its token's scores, whatever the order.
    streams = two_streams(model)
    trainer = MegatronTrainer(model, TrainerConfig(), actor=ADAM, seed=3)
    slot = trainer.actor.replay.slots[0]  # What it sees depends on no expert.
    choose, seen = slot.get_replay_topk, list[tuple[Tensor, Tensor]]()

    def watched(scores: Tensor, *arguments: object, **others: object) -> tuple[Tensor, Tensor]:
        values, experts = choose(scores, *arguments, **others)  # type: ignore[arg-type]
        seen.append((scores.detach().clone(), experts[:, 0].clone()))
        return values, experts

    monkeypatch.setattr(slot, "get_replay_topk", watched)
    for stream in streams:
        current(trainer, [stream], replay=False)
    alone = torch.cat([scores for scores, _ in seen])
    recorded = torch.tensor([0, 1, 2, 3])
    current(trainer, streams)
    together, given = seen[-1]
    distances = (together[:, None] - alone).abs().amax(-1)
    tokens = distances.argmin(-1)
    assert sorted(tokens.tolist()) == [0, 1, 2, 3]
    assert distances.amin(-1).max() < 1e-6 < distances.topk(2, largest=False).values[:, 1].min() / 10
    assert torch.equal(given, recorded[tokens])


def test_padding_has_no_row_and_moves_none(model: ModelConfig) -> None:
    # The same case of miles #3146 with its padding: on every rank a row stands where its token does, -1 at no token.
    streams, token_of = two_streams(model), {0: 5, 1: 70, 2: 31, 3: 8}
    held = []
    for rank in (0, 1):
        (batch,) = micro_batches(streams, 64, replay=True, share=Share(context=(rank, 2)))
        assert batch.routing_LRK is not None
        assert batch.padding_T is not None
        for rows in batch.routing_LRK[:, :, 0].tolist():
            assert [token_of.get(expert, 0) for expert in rows] == batch.ids_T.tolist()
            assert [expert == -1 for expert in rows] == batch.padding_T.tolist()
        held += batch.routing_LRK[0, :, 0].tolist()
    assert sorted(held) == [-1, -1, -1, -1, 0, 1, 2, 3]


def test_a_plan_for_two_micro_batches_of_which_one_ran_is_an_error_with_router_and_counts(
    model: ModelConfig, samples: list[Sample]
) -> None:
    # SkyRL #1908, slime: a replay cursor that was not at its end went on into the next step, and nothing said so.
    trainer = MegatronTrainer(model, TrainerConfig(micro_batch_tokens=8_192), actor=ADAM, seed=3)
    (batch,) = micro_batches(samples, 8_192, replay=False)
    plan = record(trainer, batch)

    def run(times: int, planned: int) -> None:
        with trainer.actor.replay.replay([plan] * planned):
            for _ in range(times):
                logits(trainer, batch, None)

    run(2, planned=2)
    counts = "layer 1: 1 forward, 0 recompute; layer 2: 1 forward, 0 recompute"
    with pytest.raises(RecordError, match=f"routing of 2 micro-batches not consumed exactly once: {counts}"):
        run(1, planned=2)
    with pytest.raises(RecordError, match="layer 1: 0 forward, 0 recompute; layer 2: 0 forward"):
        run(0, planned=1)
    with pytest.raises(RecordError, match="router of layer 1: forward pass 3 of 2 planned"):
        run(3, planned=2)
    assert logits(trainer, batch, None).isfinite().all()  # an error leaves no plan behind


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
