"""What every Trainer must do. A backend's test module subclasses `TrainerSuite` and gives `make`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch import Tensor

from components.config import CriticConfig, HlGaussConfig, ModelConfig, OptimizerConfig
from components.errors import CheckpointError, RecordError
from components.records import Float32, Sample
from components.routing import checksum
from components.trainer import LearnItem, Trainer

ADAM = OptimizerConfig(lr=1e-3, weight_decay=0.1)
MUON = OptimizerConfig(kind="muon", lr=1e-3, matrix_lr=5e-3, weight_decay=0.1, warmup_steps=3)
CRITIC = CriticConfig(optimizer=ADAM)

Make = Callable[..., Trainer]
"""make(actor=..., critic=..., micro_batch_tokens=..., seed=...) -> Trainer"""


def random_sample(generator: np.random.Generator, model: ModelConfig, length: int) -> Sample:
    """A stream with a prompt, sampled runs between observations, and valid random routing."""
    mask = np.zeros(length, dtype=bool)
    mask[max(1, length // 4) :] = generator.random(length - max(1, length // 4)) < 0.7
    mask[-1] = True
    shape = (length - 1, model.num_hidden_layers, model.num_experts)
    routing = np.argsort(generator.random(shape), axis=-1)[..., : model.num_experts_per_tok].astype(np.uint8)
    return Sample(
        tokens=generator.integers(0, model.vocab_size, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -1, 0).astype(np.float32),
        routing=routing,
        trial_id=f"trial-{length}",
        routing_checksum=checksum(routing),
    )


def items(trainer: Trainer, samples: Sequence[Sample], *, gain: float = 1.0, target: float = 0.5) -> list[LearnItem]:
    """What a step of RL hands to the trainer, with one advantage and one return for every token."""
    old = trainer.logprobs(samples, weights="behaviour", replay=True, temperature=1.0)
    values = trainer.values(samples)
    return [
        LearnItem(sample, np.full_like(logprobs, gain), logprobs, np.full_like(logprobs, target), value)
        for sample, logprobs, value in zip(samples, old, values, strict=True)
    ]


def current(trainer: Trainer, samples: Sequence[Sample], *, replay: bool = True) -> list[Float32]:
    return trainer.logprobs(samples, weights="current", replay=replay, temperature=1.0)


def weights_in(folder: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face folder, of whatever files it is made."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def total(arrays: Sequence[Float32]) -> float:
    return float(sum(array.sum(dtype=np.float64) for array in arrays))


def same(left: Sequence[Float32], right: Sequence[Float32]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


class TrainerSuite:
    """Behaviour that callers rely on, whatever the backend."""

    def test_arrays_are_aligned_with_the_tokens_and_zero_where_nothing_was_sampled(
        self, make: Make, samples: list[Sample]
    ) -> None:
        trainer = make(critic=CRITIC)
        for arrays in (current(trainer, samples), trainer.values(samples)):
            for array, sample in zip(arrays, samples, strict=True):
                assert array.dtype == np.float32
                assert len(array) == len(sample.tokens)
                assert not array[~sample.loss_mask].any()
        assert all((a[s.loss_mask] < 0).all() for a, s in zip(current(trainer, samples), samples, strict=True))

    def test_a_stream_is_scored_alike_alone_and_among_others(self, make: Make, samples: list[Sample]) -> None:
        trainer = make()
        together = current(trainer, samples)
        alone = [current(trainer, [sample])[0] for sample in samples]
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)

    def test_supervised_steps_overfit_a_small_batch(self, make: Make, samples: list[Sample]) -> None:
        trainer = make(actor=OptimizerConfig(kind="muon", lr=1e-2, matrix_lr=2e-2, weight_decay=0))
        losses = [trainer.sft_step(samples[:2], lr_share=1.0, aux_loss_coef=0.0)["loss"] for _ in range(40)]
        assert losses[0] > 5
        assert losses[-1] < 0.3

    def test_supervised_loss_is_the_mean_over_the_sampled_tokens(self, make: Make, samples: list[Sample]) -> None:
        trainer = make()
        tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        expected = -total(current(trainer, samples, replay=False)) / tokens
        metrics = trainer.sft_step(samples, lr_share=1.0, aux_loss_coef=0.0)
        assert metrics["tokens"] == tokens
        assert metrics["loss"] == pytest.approx(expected, abs=1e-6)

    def test_the_balancing_loss_is_reported_and_changes_the_step(self, make: Make, samples: list[Sample]) -> None:
        with_it, without = make(), make()
        metrics = with_it.sft_step(samples, lr_share=1.0, aux_loss_coef=1.0)
        assert metrics["aux_loss"] >= 1 - 1e-6  # its minimum, reached by a uniform router
        assert "aux_loss" not in without.sft_step(samples, lr_share=1.0, aux_loss_coef=0.0)
        assert not same(current(with_it, samples), current(without, samples))

    def test_no_learning_rate_means_no_change(self, make: Make, samples: list[Sample]) -> None:
        trainer = make()
        before = current(trainer, samples)
        trainer.sft_step(samples, lr_share=0.0, aux_loss_coef=0.0)
        assert same(before, current(trainer, samples))

    def test_a_policy_step_raises_the_log_probs_of_tokens_with_positive_advantage(
        self, make: Make, samples: list[Sample]
    ) -> None:
        for gain in (1.0, -1.0):
            trainer = make(critic=CRITIC)
            learn = items(trainer, samples, gain=gain)
            before = total(current(trainer, samples))
            metrics = trainer.actor_step(learn, clip=0.2, temperature=1.0)
            assert gain * (total(current(trainer, samples)) - before) > 0
            assert metrics["loss"] == pytest.approx(-gain, abs=1e-5)
            assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
            assert 0 < metrics["entropy"] <= np.log(1e6)
            assert {"clip_frac", "approx_kl", "grad_norm"} <= metrics.keys()

    def test_value_steps_bring_the_values_to_the_returns(self, make: Make, samples: list[Sample]) -> None:
        trainer = make(critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-2, weight_decay=0)))
        assert total(trainer.values(samples)) == 0  # a fresh head predicts nothing
        for _ in range(30):
            metrics = trainer.critic_step(items(trainer, samples, target=0.5))
        assert metrics["loss"] < 0.01
        assert {"clip_frac", "grad_norm"} <= metrics.keys()
        values = np.concatenate([v[s.loss_mask] for v, s in zip(trainer.values(samples), samples, strict=True)])
        np.testing.assert_allclose(values, 0.5, atol=0.2)

    def test_a_critic_of_bins_learns_the_returns_too(self, make: Make, samples: list[Sample]) -> None:
        loss = HlGaussConfig(kind="hl_gauss", bins=21, low=-0.5, high=1.5)
        trainer = make(critic=CriticConfig(optimizer=OptimizerConfig(lr=1e-2, weight_decay=0), loss=loss))
        before = np.concatenate([v[s.loss_mask] for v, s in zip(trainer.values(samples), samples, strict=True)])
        np.testing.assert_allclose(before, 0.5, atol=1e-5)  # all bins alike: the middle
        losses = []
        for _ in range(30):
            metrics = trainer.critic_step(items(trainer, samples, target=0.9))
            losses.append(metrics["loss"])
        assert losses[-1] < losses[0]
        assert {"square_error", "outside_bins", "grad_norm"} <= metrics.keys()
        after = np.concatenate([v[s.loss_mask] for v, s in zip(trainer.values(samples), samples, strict=True)])
        np.testing.assert_allclose(after, 0.9, atol=0.15)

    def test_actor_and_critic_do_not_share_weights(self, make: Make, samples: list[Sample]) -> None:
        trainer = make(critic=CRITIC)
        learn = items(trainer, samples)
        policy = current(trainer, samples)
        trainer.critic_step(learn)
        assert same(policy, current(trainer, samples))
        values = trainer.values(samples)
        trainer.actor_step(learn, clip=0.2, temperature=1.0)
        assert same(values, trainer.values(samples))

    def test_the_behaviour_snapshot_moves_only_when_rotated(self, make: Make, samples: list[Sample]) -> None:
        trainer = make(critic=CRITIC)
        learn = items(trainer, samples)
        trainer.actor_step(learn, clip=0.2, temperature=1.0)
        old = trainer.logprobs(samples, weights="behaviour", replay=True, temperature=1.0)
        new = current(trainer, samples)
        assert same(old, [item.old_logprobs_N for item in learn])
        assert not same(old, new)
        trainer.rotate()
        assert same(new, trainer.logprobs(samples, weights="behaviour", replay=True, temperature=1.0))
        assert same(new, current(trainer, samples))

    def test_as_many_snapshots_are_kept_as_were_asked_for_and_they_age(
        self, make: Make, samples: list[Sample], tmp_path: Path
    ) -> None:
        def aged(trainer: Trainer, age: int) -> list[Float32]:
            return trainer.logprobs(samples, weights="behaviour", replay=True, temperature=1.0, age=age)

        trainer = make(critic=CRITIC, snapshots=2)
        policies = [current(trainer, samples)]
        for _ in range(2):
            trainer.rotate()
            trainer.actor_step(items(trainer, samples), clip=0.2, temperature=1.0)
            policies.append(current(trainer, samples))
        assert not same(policies[0], policies[1])
        other = make(critic=CRITIC, snapshots=2, seed=99)
        trainer.state().write(tmp_path / "state")
        other.load(tmp_path / "state")
        for one in (trainer, other):
            assert same(aged(one, 1), policies[1])
            assert same(aged(one, 2), policies[0])
        with pytest.raises(ValueError, match="a snapshot of age 3 was asked for, 2 are kept"):
            aged(trainer, 3)

    @pytest.mark.parametrize("step", ["sft", "actor", "sequence", "critic", "bins"])
    def test_how_a_batch_is_cut_does_not_change_the_step(
        self, make: Make, samples: list[Sample], tmp_path: Path, step: str
    ) -> None:
        # Adam's first step turns a gradient into its sign, so rounding of one near zero shows: keep the rate small.
        adam = OptimizerConfig(lr=2e-4, weight_decay=0.1)
        bins = HlGaussConfig(kind="hl_gauss", bins=11)
        critic = CriticConfig(optimizer=adam, loss_scale=3.0, **({"loss": bins} if step == "bins" else {}))
        results = []
        for capacity in (128, 8_192):
            trainer = make(actor=adam, critic=critic, micro_batch_tokens=capacity)
            batch = [*samples, *samples[1:]]
            if step == "sft":
                metrics = trainer.sft_step(batch, lr_share=1.0, aux_loss_coef=0.0)
            elif step in ("actor", "sequence"):
                level = "token" if step == "actor" else "sequence"
                metrics = trainer.actor_step(items(trainer, batch), clip=0.2, temperature=0.7, level=level)
            else:
                metrics = trainer.critic_step(items(trainer, batch))
            trainer.save_hf(tmp_path / f"{step}-{capacity}")
            weights = weights_in(tmp_path / f"{step}-{capacity}")
            results.append((metrics, weights, trainer.values(samples)))
        (metrics, weights, values), (other_metrics, other_weights, other_values) = results
        for name in metrics.keys() - {"ratio_max", "error_max"}:
            assert metrics[name] == pytest.approx(other_metrics[name], rel=1e-5, abs=1e-6), name
        for name, weight in weights.items():
            np.testing.assert_allclose(weight.numpy(), other_weights[name].numpy(), atol=1e-6, err_msg=name)
        for a, b in zip(values, other_values, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)

    def test_the_stream_of_weights_is_the_saved_folder(self, make: Make, tmp_path: Path) -> None:
        trainer = make()
        trainer.save_hf(tmp_path / "hf")
        saved = weights_in(tmp_path / "hf")
        streamed = dict(trainer.stream_hf())
        assert streamed.keys() == saved.keys()
        assert all(tensor.is_contiguous() and tensor.equal(saved[name]) for name, tensor in streamed.items())

    @pytest.mark.parametrize("actor", [ADAM, MUON], ids=["adam", "muon"])
    def test_a_resumed_run_is_bit_equal(
        self, make: Make, samples: list[Sample], tmp_path: Path, actor: OptimizerConfig
    ) -> None:
        def steps(trainer: Trainer, count: int) -> list[dict[str, float]]:
            metrics = []
            for _ in range(count):
                learn = items(trainer, samples)
                metrics.append(trainer.critic_step(learn))
                metrics.append(trainer.actor_step(learn, clip=0.2, temperature=1.0))
            return metrics

        first = make(actor=actor, critic=CRITIC)
        steps(first, 2)
        first.rotate()
        steps(first, 1)
        first.state().write(tmp_path / "state")
        second = make(actor=actor, critic=CRITIC, seed=99)
        second.load(tmp_path / "state")
        assert steps(first, 2) == steps(second, 2)
        assert same(current(first, samples), current(second, samples))
        assert same(first.values(samples), second.values(samples))

    def test_a_state_is_a_copy_that_later_steps_leave_alone(
        self, make: Make, samples: list[Sample], tmp_path: Path
    ) -> None:
        trainer = make(actor=ADAM, critic=CRITIC)
        learn = items(trainer, samples)
        before, values, state = current(trainer, samples), trainer.values(samples), trainer.state()
        for _ in range(2):
            trainer.critic_step(learn)
            trainer.actor_step(learn, clip=0.2, temperature=1.0)
            trainer.rotate()
        state.write(tmp_path / "state")
        assert not same(before, current(trainer, samples))
        trainer.load(tmp_path / "state")
        assert same(before, current(trainer, samples))
        assert same(values, trainer.values(samples))

    def test_weights_travel_through_a_hugging_face_folder(
        self, make: Make, samples: list[Sample], tmp_path: Path
    ) -> None:
        first, second = make(seed=1), make(critic=CRITIC, seed=2)
        first.save_hf(tmp_path / "model")
        second.load_hf(tmp_path / "model")
        assert same(current(first, samples), current(second, samples))
        assert same(current(first, samples), trainer_behaviour(second, samples))
        second.critic_step(items(second, samples))
        second.load_hf(tmp_path / "model", what="critic_from_actor")
        assert total(second.values(samples)) == 0

    def test_a_broken_folder_is_named_and_changes_nothing(
        self, make: Make, samples: list[Sample], tmp_path: Path
    ) -> None:
        trainer = make(critic=CRITIC)
        before = current(trainer, samples)
        trainer.save_hf(tmp_path / "model")
        trainer.state().write(tmp_path / "state")
        with pytest.raises(CheckpointError, match="nowhere"):
            trainer.load_hf(tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match="nowhere"):
            trainer.load(tmp_path / "nowhere")
        for file, load in ((tmp_path / "model", trainer.load_hf), (tmp_path / "state", trainer.load)):
            for weights in file.glob("*.safetensors"):
                whole = weights.read_bytes()
                weights.write_bytes(whole[: len(whole) // 2])
                with pytest.raises(CheckpointError, match=weights.name):
                    load(file)
                weights.write_bytes(whole)
            load(file)
        assert same(before, current(trainer, samples))

    def test_replay_without_a_record_is_refused(self, make: Make, samples: list[Sample]) -> None:
        trainer = make()
        bare = [Sample(s.tokens, s.loss_mask, s.logprobs, None, s.trial_id) for s in samples]
        with pytest.raises(RecordError, match="no routing"):
            current(trainer, bare)
        assert len(current(trainer, bare, replay=False)) == len(bare)

    def test_a_batch_without_trainable_tokens_is_refused(self, make: Make, samples: list[Sample]) -> None:
        first = samples[0]
        masked = replace(first, loss_mask=np.zeros_like(first.loss_mask), logprobs=np.zeros_like(first.logprobs))
        trainer = make()
        with pytest.raises(RecordError, match="no trainable token"):
            trainer.sft_step([masked], lr_share=1.0, aux_loss_coef=0.0)
        assert not current(trainer, [masked])[0].any()


def trainer_behaviour(trainer: Trainer, samples: Sequence[Sample]) -> list[Float32]:
    return trainer.logprobs(samples, weights="behaviour", replay=True, temperature=1.0)
