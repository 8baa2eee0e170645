"""Qwen3.5-MoE: gated delta nets, gated attention and a shared expert, with transformers as the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from components.config import ModelConfig, OptimizerConfig, TrainerConfig
from components.config.hugging_face import document
from components.records import Sample
from components.routing import checksum
from components.trainer.batching import micro_batches
from components.trainer.megatron import MegatronTrainer
from components.trainer.megatron.muon import matrix_parts
from components.trainer.megatron.weights import expected_shapes, to_hugging_face, to_megatron
from tests.conformance.trainer_suite import ADAM, CRITIC, MUON, current, items, random_sample, same
from tests.trainer.conftest import HYBRID
from tests.trainer.test_weights import all_trainable, assert_read_and_written_alike, oracle_gradients

TIED = HYBRID.model_copy(update={"tie_word_embeddings": True})
UNTIED = HYBRID.model_copy(update={"tie_word_embeddings": False})


@pytest.fixture
def streams() -> list[Sample]:
    """Of more than two chunks of the delta rule, of one, and shorter than the convolution."""
    generator = np.random.default_rng(11)
    return [random_sample(generator, HYBRID, length) for length in (140, 9, 65, 33, 3)]


def build(model: ModelConfig = UNTIED, *, seed: int = 0, **optimizers: OptimizerConfig) -> MegatronTrainer:
    """A trainer whose vectors, too, are random: fresh ones are constant and would hide a mapping that swaps them."""
    trainer = MegatronTrainer(model, TrainerConfig(), seed=seed, **optimizers)
    torch.manual_seed(seed)
    vectors = {n: p + 0.2 * torch.randn_like(p) for n, p in trainer.actor.parameters().items() if p.ndim == 1}
    trainer.actor.set_parameters(vectors)
    trainer.rotate()
    return trainer


@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
def test_transformers_and_megatron_agree_in_both_directions(
    model: ModelConfig, streams: list[Sample], tmp_path: Path
) -> None:
    assert_read_and_written_alike(build(model), build(model, seed=5), all_trainable(streams), tmp_path)


def logits(trainer: MegatronTrainer, streams: list[Sample]) -> list[Tensor]:
    """[N - 1, V] a stream."""

    (batch,) = micro_batches(all_trainable(streams), trainer.capacity, replay=False)
    (rows,) = trainer.actor.evaluate([batch], lambda outputs, _: outputs.clone())
    parts = dict(zip(batch.streams, torch.split(rows, list(batch.lengths)), strict=True))
    return [parts[index] for index in range(len(streams))]


def test_the_logits_of_packed_streams_are_those_of_transformers_for_each_alone(
    streams: list[Sample], tmp_path: Path
) -> None:
    trainer = build()
    trainer.save_hf(tmp_path / "model")
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    packed = logits(trainer, streams)
    for sample, found in zip(streams, packed, strict=True):
        with torch.no_grad():
            expected = oracle(torch.from_numpy(sample.tokens.astype(np.int64))[None]).logits[0, :-1]
        assert expected.abs().max() > 0.05
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(found, logits(trainer, [sample])[0], atol=2e-6, rtol=0)


def test_supervised_gradients_are_those_of_transformers(streams: list[Sample], tmp_path: Path) -> None:
    trainer = build(actor=OptimizerConfig(lr=1e-3, max_grad_norm=1e9))
    trainer.save_hf(tmp_path / "model")
    wanted = oracle_gradients(tmp_path / "model", streams)
    metrics = trainer.sft_step(streams, lr_share=0.0, aux_loss_coef=0.0)
    norm = sum(float(gradient.double().square().sum()) for gradient in wanted.values()) ** 0.5
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    found = to_hugging_face({name: p.main_grad for name, p in trainer.actor.module.named_parameters()}, UNTIED)
    compared = [name for name in wanted if name in found]
    kinds = {name.split(".", 3)[-1] for name in compared}
    assert {"linear_attn.A_log", "linear_attn.conv1d.weight", "self_attn.q_proj.weight"} <= kinds
    assert "mlp.shared_expert_gate.weight" in kinds
    for name in compared:
        assert torch.isfinite(found[name]).all()
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-4, msg=name)


def test_every_layer_has_a_router_whose_record_is_replayed(streams: list[Sample]) -> None:
    trainer = build()
    free = current(trainer, streams, replay=False)
    with trainer.actor.replay.record() as layers:
        logits(trainer, streams)
    assert len(layers) == HYBRID.num_hidden_layers
    assert not same(free, current(trainer, streams))  # the samples' random record
    recorded = torch.stack([passes[0] for passes in layers], 1).numpy().astype(np.uint8)

    (batch,) = micro_batches(all_trainable(streams), trainer.capacity, replay=False)
    parts = dict(zip(batch.streams, np.split(recorded, np.cumsum(batch.lengths)[:-1]), strict=True))
    own = [
        replace(sample, routing=parts[place], routing_checksum=checksum(parts[place]))
        for place, sample in enumerate(streams)
    ]
    assert same(free, current(trainer, own))


@pytest.mark.parametrize("actor", [ADAM, MUON], ids=["adam", "muon"])
def test_a_resumed_run_is_bit_equal(streams: list[Sample], tmp_path: Path, actor: OptimizerConfig) -> None:
    def step(trainer: MegatronTrainer) -> list[dict[str, float]]:
        learn = items(trainer, streams)
        return [
            trainer.critic_step(learn),
            trainer.actor_step(learn, clip=0.2, temperature=1.0),
        ]

    first, second = build(actor=actor, critic=CRITIC), build(actor=actor, critic=CRITIC, seed=9)
    before = {name: p.clone() for name, p in first.actor.parameters().items()}
    step(first)
    moved = {name for name, p in first.actor.parameters().items() if not torch.equal(p, before[name])}
    assert moved == before.keys()
    first.state().write(tmp_path / "state")
    second.load(tmp_path / "state")
    assert step(first) == step(second)
    assert same(current(first, streams), current(second, streams))


@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
def test_the_mapping_is_a_bijection(model: ModelConfig) -> None:
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) for name, shape in expected_shapes(model).items()}
    back = to_hugging_face(to_megatron(weights, model), model)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def hugging_face_matrices(weights: dict[str, Tensor]) -> Iterator[Tensor]:
    """Every matrix of the layers but routers, convolutions and the shared expert's gate; fused ones apart."""
    for name, weight in weights.items():
        if weight.ndim != 2 or any(word in name for word in ("embed_tokens", "lm_head", "mlp.gate.", "expert_gate")):
            continue
        if "in_proj_qkv" in name:
            yield from torch.split(weight, [2 * 8, 2 * 8, 4 * 12])
        elif "q_proj" in name:
            yield from (part.reshape(-1, 32) for part in weight.view(4, 2, 16, 32).unbind(1))
        else:
            yield weight


def test_muon_takes_the_matrices_as_hugging_face_names_them() -> None:
    trainer = build()
    names = {parameter: name for name, parameter in trainer.actor.module.named_parameters()}
    parts = matrix_parts(names, UNTIED)
    found = [matrix for part in parts for matrix in part.read(part.parameter.detach())]
    wanted = list(hugging_face_matrices(to_hugging_face(trainer.actor.parameters(), UNTIED)))

    def described(matrix: Tensor) -> tuple[int, ...]:
        return (*matrix.shape, *matrix.flatten().tolist())

    assert sorted(map(described, found)) == sorted(map(described, wanted))


def test_a_published_folder_is_read_whose_text_model_is_part_of_a_multimodal_one(tmp_path: Path) -> None:
    trainer, other = build(seed=1), build(seed=2)
    trainer.save_hf(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    published = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in weights.items()
        if ".experts." not in name
    }
    for layer in range(HYBRID.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        experts = [
            {part: weights[f"{prefix}{expert}.{part}_proj.weight"] for part in ("gate", "up", "down")}
            for expert in range(HYBRID.num_experts)
        ]
        target = prefix.replace("model.", "model.language_model.", 1)
        published[target + "gate_up_proj"] = torch.stack([torch.cat([e["gate"], e["up"]]) for e in experts])
        published[target + "down_proj"] = torch.stack([e["down"] for e in experts])
    published |= {"model.visual.patch_embed.proj.weight": torch.zeros(3), "mtp.norm.weight": torch.zeros(3)}
    save_file(published, file)
    text = document(UNTIED)
    whole = {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text}
    (tmp_path / "model" / "config.json").write_text(json.dumps(whole))
    before = {name: p.clone() for name, p in other.actor.parameters().items()}
    other.load_hf(tmp_path / "model")
    assert not any(torch.equal(p, before[name]) for name, p in other.actor.parameters().items())
    ours = trainer.actor.parameters()
    assert all(torch.equal(ours[name], parameter) for name, parameter in other.actor.parameters().items())
