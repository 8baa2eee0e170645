"""Routing replay on a real Megatron model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from components.config import ModelConfig, TrainerConfig
from components.errors import RecordError
from components.records import Sample
from components.trainer.batching import MicroBatch, micro_batches
from components.trainer.megatron import MegatronTrainer
from components.trainer.megatron.platform import cuda_as_cpu
from components.trainer.megatron.replay import FREE, check_plan
from tests.conformance.trainer_suite import ADAM, CRITIC


@pytest.fixture
def trainer(model: ModelConfig) -> MegatronTrainer:
    return MegatronTrainer(model, TrainerConfig(micro_batch_tokens=8_192), actor=ADAM, seed=3)


@pytest.fixture
def batch(samples: list[Sample]) -> MicroBatch:
    (only,) = micro_batches(samples, 8_192, replay=False)
    return only


def planned(batch: MicroBatch, routing_LTK: Tensor | None) -> MicroBatch:
    return replace(batch, routing_LRK=routing_LTK)


def logits(trainer: MegatronTrainer, batch: MicroBatch, routing_LTK: Tensor | None) -> Tensor:
    (result,) = trainer.actor.evaluate([planned(batch, routing_LTK)], lambda outputs, _: outputs.clone())
    return result


def record(trainer: MegatronTrainer, batch: MicroBatch) -> Tensor:
    with trainer.actor.replay.record() as layers:
        logits(trainer, batch, None)
    return torch.stack([passes[0] for passes in layers])


def gradients(trainer: MegatronTrainer, batch: MicroBatch, routing_LTK: Tensor) -> dict[str, Tensor]:
    def loss(outputs: Tensor, _: MicroBatch) -> tuple[Tensor, None]:
        return outputs.square().mean(), None

    kept: dict[str, Tensor] = {}

    def grab(*_: Any) -> float:
        kept.update({name: p.main_grad.clone() for name, p in trainer.actor.module.named_parameters()})
        return 0.0

    assert trainer.actor.optimizer is not None
    trainer.actor.optimizer.step = grab  # type: ignore[method-assign]
    trainer.actor.train([planned(batch, routing_LTK)], loss)
    return kept


def test_replaying_its_own_record_changes_nothing(trainer: MegatronTrainer, batch: MicroBatch) -> None:
    own = record(trainer, batch)
    free = logits(trainer, batch, None)
    assert torch.equal(free, logits(trainer, batch, own))
    assert torch.equal(free, logits(trainer, batch, own.flip(-1)))


def test_forced_experts_change_the_logits_and_get_all_the_gradient(trainer: MegatronTrainer, batch: MicroBatch) -> None:
    forced = torch.tensor([0, 2]).expand(2, len(batch.ids_T), 2).contiguous()
    assert not torch.allclose(logits(trainer, batch, None), logits(trainer, batch, forced), atol=1e-3)
    found = gradients(trainer, batch, forced)
    for layer in range(2):
        prefix = f"decoder.layers.{layer}.mlp."
        for name in ("router.weight", "experts.linear_fc1", "experts.linear_fc2"):
            touched = found[prefix + name].flatten(1).abs().sum(1) > 0
            assert touched.tolist() == [True, False, True, False], name


def test_a_row_of_minus_one_routes_freely(trainer: MegatronTrainer, batch: MicroBatch) -> None:
    forced = torch.tensor([0, 2]).expand(2, len(batch.ids_T), 2).contiguous()
    open_plan = torch.full_like(forced, FREE)
    assert torch.equal(logits(trainer, batch, None), logits(trainer, batch, open_plan))
    first = batch.lengths[0]
    mixed = forced.clone()
    mixed[:, :first] = FREE
    alone = batch.rows_M < first
    assert torch.equal(logits(trainer, batch, mixed)[alone], logits(trainer, batch, None)[alone])
    assert not torch.equal(logits(trainer, batch, mixed)[~alone], logits(trainer, batch, None)[~alone])


def test_rows_belong_to_their_own_stream_however_it_is_packed(
    trainer: MegatronTrainer, model: ModelConfig, samples: list[Sample]
) -> None:
    together = trainer.logprobs(samples, weights="current", replay=True, temperature=1.0)
    alone = [trainer.logprobs([s], weights="current", replay=True, temperature=1.0)[0] for s in samples]
    free = trainer.logprobs(samples, weights="current", replay=False, temperature=1.0)
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert not np.allclose(together[0], free[0], atol=1e-3)


def test_a_plan_of_other_rows_is_refused(trainer: MegatronTrainer, batch: MicroBatch) -> None:
    plan = record(trainer, batch)
    with pytest.raises(RecordError, match="router of layer 1"):
        logits(trainer, batch, plan[:, :-1])
    with pytest.raises(RecordError, match="the model has 2 layers"):
        logits(trainer, batch, plan[:1])


@pytest.mark.parametrize("row", [[0, 0], [0, 4], [FREE, 1], [-2, -2]])
def test_experts_must_exist_and_be_distinct(row: list[int]) -> None:
    plan = torch.tensor([0, 1]).expand(2, 5, 2).clone()
    check_plan(plan, layers=2, num_experts=4)
    plan[1, 3] = torch.tensor(row)
    with pytest.raises(RecordError, match="layer 1, row 3"):
        check_plan(plan, layers=2, num_experts=4)


def test_replay_and_the_balancing_loss_exclude_each_other(trainer: MegatronTrainer, batch: MicroBatch) -> None:
    plan = record(trainer, batch)
    with pytest.raises(ValueError, match=r"load-balancing loss at 0 \(is 0.1\)"):
        trainer.actor.train([planned(batch, plan)], lambda outputs, _: (outputs.sum(), None), aux_loss_coef=0.1)


def test_a_fused_router_would_ignore_the_plan_and_is_refused(trainer: MegatronTrainer, batch: MicroBatch) -> None:
    trainer.actor.config.moe_router_fusion = True
    with pytest.raises(ValueError, match="moe_router_fusion off"):
        logits(trainer, batch, torch.zeros(2, len(batch.ids_T), 2, dtype=torch.int64))


def test_actor_and_critic_of_one_process_share_no_cursor(model: ModelConfig, batch: MicroBatch) -> None:
    # Megatron's own registry is one list for the process: with two models its replay breaks.
    trainer = MegatronTrainer(model, TrainerConfig(micro_batch_tokens=8_192), actor=ADAM, critic=CRITIC, seed=3)
    assert trainer.critic is not None
    assert not {id(s) for s in trainer.actor.replay.slots} & {id(s) for s in trainer.critic.replay.slots}
    forced = torch.tensor([0, 2]).expand(2, len(batch.ids_T), 2).contiguous()
    alone = logits(trainer, batch, forced)

    def values() -> Tensor:
        assert trainer.critic is not None
        (result,) = trainer.critic.evaluate([batch], lambda outputs, _: outputs.clone())
        return result

    trainer.critic.set_parameters({"output_layer.weight": torch.ones(1, model.hidden_size)})
    free = values()
    with trainer.actor.replay.replay([forced]):
        assert torch.equal(values(), free)  # the critic routes freely while the actor's plan waits
        between = trainer.actor.evaluate([planned(batch, None)], lambda outputs, _: outputs.clone())
    assert torch.equal(between[0], alone)


ORDERS = {
    "sequential": "f0 b0 f1 b1 f2 b2",
    "gpipe": "f0 f1 f2 b0 b1 b2",
    "1f1b": "f0 f1 b0 f2 b1 b2",
    "last first": "f0 f1 f2 b2 b1 b0",
}
"""Forward and backward passes of three micro-batches."""


@pytest.fixture
def three(samples: list[Sample]) -> list[MicroBatch]:
    """Micro-batches of equal shape, so that a plan of another one would fit, with a plan each."""
    equal = [
        Sample(s.tokens[:30], s.loss_mask[:30], s.logprobs[:30], None, s.trial_id)
        for s in samples
        if len(s.tokens) > 30
    ]
    batches = [batch for sample in equal for batch in micro_batches([sample], 128, replay=False)]
    pairs = ([0, 1], [1, 3], [2, 0])
    plans = [torch.tensor(pair, dtype=torch.int16).expand(2, 29, 2).contiguous() for pair in pairs]
    return [planned(batch, plan) for batch, plan in zip(batches, plans, strict=True)]


def passes(trainer: MegatronTrainer, batches: list[MicroBatch], order: str) -> dict[str, Tensor]:
    """Gradients of the sum of losses, by passes in this order."""
    network = trainer.actor
    trainer.actor.module.zero_grad()

    def loss(outputs: Tensor, _: MicroBatch) -> tuple[Tensor, None]:
        return outputs.square().mean(), None

    losses: dict[str, Tensor] = {}
    plans = [batch.routing_LRK for batch in batches if batch.routing_LRK is not None]
    with network.replay.replay(plans, backward=True), cuda_as_cpu():
        for what in order.split():
            if what[0] == "f":
                outputs, scaled = network._forward(loss, 1, iter([batches[int(what[1])]]), network.module)
                losses[what[1]] = scaled(outputs)[0]
            else:
                losses.pop(what[1]).backward()
    return {name: p.grad.clone() for name, p in network.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recompute_follows_the_plan_of_its_micro_batch_in_every_order(
    model: ModelConfig, three: list[MicroBatch], recompute: str, order: str
) -> None:
    plain = passes(MegatronTrainer(model, TrainerConfig(), seed=3), three, ORDERS["sequential"])
    config = TrainerConfig.model_validate({"recompute": recompute})
    trainer = MegatronTrainer(model, config, seed=3)
    again = passes(trainer, three, ORDERS[order])
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(gradient, again[name], atol=1e-7, rtol=1e-6, msg=name)
    # The plans differ: the gradients of another order of plans are others.
    turned = [planned(batch, other.routing_LRK) for batch, other in zip(three, three[1:] + three[:1], strict=True)]
    other = passes(trainer, turned, ORDERS[order])
    assert any(not torch.allclose(gradient, other[name], atol=1e-5) for name, gradient in plain.items())


@pytest.mark.parametrize(
    ("order", "counts"), [("f0 b0 f1 f2 b2", "3 forward, 2 recompute"), ("f0 b0 f1 b1", "2 forward, 2 recompute")]
)
def test_a_pass_that_is_missing_is_named_with_its_router(
    model: ModelConfig, three: list[MicroBatch], order: str, counts: str
) -> None:
    trainer = MegatronTrainer(model, TrainerConfig(recompute="full"), seed=3)
    with pytest.raises(RecordError, match=f"3 micro-batches not consumed exactly once: layer 1: {counts}; layer 2"):
        passes(trainer, three, order)


def test_a_recomputation_that_saw_other_scores_is_no_micro_batchs(
    model: ModelConfig, three: list[MicroBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = MegatronTrainer(model, TrainerConfig(recompute="full"), seed=3)
    slot = trainer.actor.replay.slots[0]
    recomputed = slot._recomputed
    monkeypatch.setattr(slot, "_recomputed", lambda scores: recomputed(scores + 1))
    with pytest.raises(RecordError, match="router of layer 1: a recompute pass saw the scores of no micro-batch"):
        passes(trainer, three, ORDERS["1f1b"])


def test_nothing_is_awaited_where_no_backward_pass_follows(model: ModelConfig, three: list[MicroBatch]) -> None:
    trainer = MegatronTrainer(model, TrainerConfig(recompute="full"), seed=3)
    plain = MegatronTrainer(model, TrainerConfig(), seed=3)
    for batch in three:
        assert torch.equal(logits(trainer, batch, batch.routing_LRK), logits(plain, batch, batch.routing_LRK))
