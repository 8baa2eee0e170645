"""Hugging Face folders, with transformers as the oracle."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from components.config import CriticConfig, ModelConfig, OptimizerConfig, TrainerConfig
from components.errors import CheckpointError
from components.records import Sample
from components.trainer.folder import atomic_folder, recover
from components.trainer.megatron import MegatronTrainer
from components.trainer.megatron.weights import expected_shapes, to_hugging_face, to_megatron


def build(model: ModelConfig, seed: int = 0) -> MegatronTrainer:
    return MegatronTrainer(model, TrainerConfig(), seed=seed)


def oracle_logprobs(folder: Path, samples: list[Sample]) -> list[torch.Tensor]:
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    result = []
    for sample in samples:
        ids = torch.from_numpy(sample.tokens.astype(np.int64))
        with torch.no_grad():
            table = oracle(ids[None]).logits[0, :-1].log_softmax(-1)
        result.append(table.gather(-1, ids[1:, None])[:, 0])
    return result


def oracle_gradients(folder: Path, samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Of the token mean of the cross entropy, by transformers' names."""
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    for sample in samples:
        ids = torch.from_numpy(sample.tokens.astype(np.int64))
        labels = torch.where(torch.from_numpy(sample.loss_mask), ids, -100)[1:]
        (cross_entropy(oracle(ids[None]).logits[0, :-1], labels, reduction="sum") / tokens).backward()
    return {name: p.grad for name, p in oracle.named_parameters() if p.grad is not None}


def all_trainable(samples: list[Sample]) -> list[Sample]:
    masks = [np.arange(len(s.tokens)) > 0 for s in samples]
    return [
        Sample(s.tokens, mask, np.where(mask, -1, 0).astype(np.float32), None, s.trial_id)
        for s, mask in zip(samples, masks, strict=True)
    ]


def assert_read_and_written_alike(
    first: MegatronTrainer, second: MegatronTrainer, samples: list[Sample], folder: Path
) -> None:
    """transformers computes what `first` does, from its folder; `second` does the same from the one it writes back."""
    first.save_hf(folder / "ours")
    ours = first.logprobs(samples, weights="current", replay=False, temperature=1.0)
    for array, expected in zip(ours, oracle_logprobs(folder / "ours", samples), strict=True):
        np.testing.assert_allclose(array[1:], expected.numpy(), atol=1e-5)

    AutoModelForCausalLM.from_pretrained(folder / "ours", dtype=torch.float32).save_pretrained(folder / "theirs")
    left, right = (load_file(folder / name / "model.safetensors") for name in ("ours", "theirs"))
    assert left.keys() == right.keys() == expected_shapes(first.model).keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    second.load_hf(folder / "theirs")
    again = second.logprobs(samples, weights="current", replay=False, temperature=1.0)
    assert all(np.array_equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_transformers_and_megatron_agree_in_both_directions(
    model: ModelConfig, samples: list[Sample], tmp_path: Path, tied: bool
) -> None:
    model = model.model_copy(update={"tie_word_embeddings": tied})
    samples = all_trainable(samples)
    first = build(model)
    torch.manual_seed(0)  # fresh norms are all ones: they would hide a mapping that swaps them
    norms = {n: 1 + 0.2 * torch.randn_like(p) for n, p in first.actor.parameters().items() if "norm" in n}
    first.actor.set_parameters(norms)
    assert_read_and_written_alike(first, build(model, seed=5), samples, tmp_path)


def test_a_critics_folder_is_a_token_classifier_of_transformers_with_the_same_values(
    model: ModelConfig, samples: list[Sample], tmp_path: Path
) -> None:
    trainer = MegatronTrainer(model, TrainerConfig(), critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-2)), seed=4)
    assert trainer.critic is not None
    torch.manual_seed(0)
    head = {n: torch.randn_like(p) for n, p in trainer.critic.parameters().items() if n.startswith("output_layer")}
    trainer.critic.set_parameters(head)
    trainer.save_hf(tmp_path / "critic", what="critic")
    oracle = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", dtype=torch.float32).eval()
    for sample, values in zip(samples, trainer.values(samples), strict=True):
        with torch.no_grad():
            expected = oracle(torch.from_numpy(sample.tokens.astype(np.int64))[None]).logits[0, :-1, 0].numpy()
        np.testing.assert_allclose(values[1:], np.where(sample.loss_mask[1:], expected, 0), atol=1e-5)
    with pytest.raises(CheckpointError, match=r"missing: lm_head|unexpected: score"):
        trainer.load_hf(tmp_path / "critic", what="actor")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_supervised_gradients_are_those_of_transformers(
    model: ModelConfig, samples: list[Sample], tmp_path: Path, tied: bool
) -> None:
    model = model.model_copy(update={"tie_word_embeddings": tied})
    trainer = MegatronTrainer(model, TrainerConfig(micro_batch_tokens=128), actor=OptimizerConfig(lr=1e-3), seed=2)
    trainer.save_hf(tmp_path / "model")
    wanted = oracle_gradients(tmp_path / "model", samples)
    metrics = trainer.sft_step(samples, lr_share=0.0, aux_loss_coef=0.0)
    norm = sum(float(gradient.double().square().sum()) for gradient in wanted.values()) ** 0.5
    assert norm > 1.0  # so it was clipped to 1
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    clipped = {name: p.main_grad * (norm + 1e-6) for name, p in trainer.actor.module.named_parameters()}
    found = to_hugging_face(clipped, model)
    compared = [name for name in wanted if name in found]
    assert len(compared) > 10
    for name in compared:
        torch.testing.assert_close(found[name], wanted[name], atol=2e-5, rtol=1e-4, msg=name)


def test_the_mapping_is_a_bijection(model: ModelConfig) -> None:
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) for name, shape in expected_shapes(model).items()}
    back = to_hugging_face(to_megatron(weights, model), model)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_fresh_weights_follow_the_seed_and_the_stated_deviations() -> None:
    model = ModelConfig()
    trainer = build(model, seed=4)
    parameters = trainer.actor.parameters()
    for name, parameter in parameters.items():
        if parameter.ndim == 1:
            assert torch.all(parameter == 1), name
            continue
        small = "linear_fc2" in name or "linear_proj" in name
        expected = model.init_std / (2 * model.num_hidden_layers) ** 0.5 if small else model.init_std
        assert float(parameter.std()) == pytest.approx(expected, rel=0.05), name
    same, other = build(model, seed=4).actor.parameters(), build(model, seed=5).actor.parameters()
    assert all(torch.equal(parameters[name], same[name]) for name in parameters)
    assert not torch.equal(
        parameters["decoder.layers.0.mlp.router.weight"], other["decoder.layers.0.mlp.router.weight"]
    )


def test_sharded_folders_are_read(model: ModelConfig, tmp_path: Path) -> None:
    first, second = build(model, seed=1), build(model, seed=2)
    first.save_hf(tmp_path / "model")
    whole = tmp_path / "model" / "model.safetensors"
    weights = load_file(whole)
    whole.unlink()
    where = {name: f"part-{place % 2}.safetensors" for place, name in enumerate(weights)}
    for file in set(where.values()):
        save_file({n: w for n, w in weights.items() if where[n] == file}, tmp_path / "model" / file)
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    second.load_hf(tmp_path / "model")
    assert all(torch.equal(p, second.actor.parameters()[n]) for n, p in first.actor.parameters().items())


def test_every_misfit_is_listed_at_once(model: ModelConfig, tmp_path: Path) -> None:
    trainer = build(model)
    trainer.save_hf(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    del weights["model.norm.weight"]
    weights["model.layers.0.mlp.gate.weight"] = torch.zeros(3, 3)
    weights["stray"] = torch.zeros(1)
    weights["lm_head.weight"] = torch.zeros_like(weights["model.embed_tokens.weight"])
    save_file(weights, file)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 1}))
    with pytest.raises(CheckpointError) as caught:
        trainer.load_hf(tmp_path / "model")
    for problem in (
        "5 problems",
        "missing: model.norm.weight",
        "unexpected: stray",
        "model.layers.0.mlp.gate.weight is [3, 3], the model needs [4, 32]",
        "lm_head.weight differs",
        "config.json has num_experts_per_tok 1, the model needs 2",
    ):
        assert problem in str(caught.value)


def test_a_state_of_another_model_or_composition_is_refused(model: ModelConfig, tmp_path: Path) -> None:
    build(model).state().write(tmp_path / "state")
    other = build(model.model_copy(update={"num_experts": 8}))
    with pytest.raises(CheckpointError, match=r"model\.num_experts was 4, is 8"):
        other.load(tmp_path / "state")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with atomic_folder(target) as fresh:
        (fresh / "a").write_text("1")
        assert not target.exists()

    def interrupted() -> None:
        with atomic_folder(target) as fresh:
            (fresh / "a").write_text("2")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        interrupted()
    assert (target / "a").read_text() == "1"
    with atomic_folder(target) as fresh:
        (fresh / "b").write_text("3")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_writer_stopped_between_the_renames_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "folder", Path.rename
    with atomic_folder(target) as fresh:
        (fresh / "version").write_text("old")

    def stopping(source: Path, other: Path) -> Path:
        moved = rename(source, other)
        if source == target:
            raise SystemExit(143)  # as a job raises it on SIGTERM
        return moved

    def write() -> None:
        with atomic_folder(target) as fresh:
            (fresh / "version").write_text("new")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopping)
        with pytest.raises(SystemExit):
            write()
    assert (target / "version").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def write_and_die(target: Path, renames: int) -> None:
    """Is killed after so many renames, if it has not ended before."""
    rename, left = Path.rename, renames

    def counting(source: Path, other: Path) -> Path:
        nonlocal left
        moved = rename(source, other)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    try:
        Path.rename = counting  # type: ignore[method-assign]
        with atomic_folder(target) as fresh:
            (fresh / "version").write_text("new")
            if not renames:
                os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(0)


@pytest.mark.parametrize("after", ["writing", "first rename", "second rename"])
def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_folder(tmp_path: Path, after: str) -> None:
    target = tmp_path / "folder"
    with atomic_folder(target) as fresh:
        (fresh / "version").write_text("old")
    child = os.fork()  # nothing of torch is used in it; an interpreter of its own would import it for seconds
    if not child:
        write_and_die(target, ["writing", "first rename", "second rename"].index(after))
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    recover(target)
    assert (target / "version").read_text() == ("new" if after == "second rename" else "old")
    with atomic_folder(target) as fresh:
        (fresh / "version").write_text("next")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
