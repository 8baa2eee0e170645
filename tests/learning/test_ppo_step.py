"""The order of one update, and what enters it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.config import PpoConfig, load
from components.learning.ppo_step import learn
from components.records import Float32, Sample
from components.trainer import LearnItem

MINIATURE = load("configs/miniature.yaml").ppo
CONFIG = MINIATURE.model_copy(update={"whiten_advantages": False})
ACTOR = MINIATURE.actor.model_dump()
REWARDS = [0.4, 0.1]


def _sample(index: int, n: int, trial: str = "") -> Sample:
    rng = np.random.default_rng(index)
    mask = np.zeros(n, dtype=np.bool_)
    mask[2:4] = mask[6:n] = True
    logprobs = np.where(mask, -rng.random(n), 0).astype(np.float32)
    return Sample(rng.integers(0, 50, n, dtype=np.int32), mask, logprobs, None, trial or f"trial-{index}")


class RecordingTrainer:
    """A trainer whose figures are known and that notes what was asked of it, in order."""

    def __init__(self, engine_gap: float = 0.25) -> None:
        self.calls: list[str] = []
        self.items: Sequence[LearnItem] = ()
        self.critic_moved = False
        self.shifts = {"behaviour": engine_gap, "current": engine_gap + 0.5}

    def logprobs(
        self, samples: Sequence[Sample], *, weights: str, replay: bool, temperature: float, age: int = 1
    ) -> list[Float32]:
        self.calls.append(f"logprobs {weights} replay={replay} T={temperature:g}" + f" age={age}" * (age > 1))
        shift = self.shifts[weights] + 0.1 * (age - 1)
        return [np.where(s.loss_mask, s.logprobs + shift, 0).astype(np.float32) for s in samples]

    def values(self, samples: Sequence[Sample]) -> list[Float32]:
        self.calls.append("values")
        level = 9.0 if self.critic_moved else 0.3
        return [np.where(s.loss_mask, level, 0).astype(np.float32) for s in samples]

    def critic_step(self, items: Sequence[LearnItem]) -> dict[str, float]:
        self.calls.append("critic")
        self.critic_moved = True
        self.items = items
        return {"loss": 1.0}

    def actor_step(
        self, items: Sequence[LearnItem], *, clip: float, temperature: float, level: str, replay: bool = True
    ) -> dict[str, float]:
        self.calls.append(f"actor clip={clip:g} {level} replay={replay} T={temperature:g}")
        self.items = items
        return {"loss": 2.0}

    def rotate(self) -> None:
        self.calls.append("rotate")

    def sft_step(self, samples: Sequence[Sample], **_: Any) -> dict[str, float]:
        raise AssertionError("no supervised step belongs here")

    def load_hf(self, folder: Path, **_: Any) -> None:
        raise AssertionError("nothing is loaded here")

    def save_hf(self, folder: Path, **_: Any) -> None:
        raise AssertionError("nothing is saved here")

    save = load = save_hf


def _learn(
    config: PpoConfig = CONFIG,
    *,
    samples: Sequence[Sample] | None = None,
    rewards: Sequence[float] = REWARDS,
    groups: Sequence[str] | None = None,
    actor_moves: bool = True,
    engine_gap: float = 0.25,
    temperature: float = 1.0,
) -> tuple[RecordingTrainer, dict[str, float]]:
    trainer = RecordingTrainer(engine_gap)
    samples = samples or [_sample(0, 9), _sample(1, 12)]
    groups = groups or [sample.trial_id for sample in samples]
    result = learn(
        trainer,
        samples,
        rewards,
        config,
        groups=groups,
        version=1,
        temperature=temperature,
        actor_moves=actor_moves,
    )
    return trainer, result.metrics


def test_everything_is_measured_before_a_weight_moves_and_the_critic_moves_first() -> None:
    trainer, _ = _learn(temperature=0.7)
    assert trainer.calls == [
        "logprobs behaviour replay=True T=0.7",
        "logprobs current replay=True T=0.7",
        "values",
        "critic",
        "rotate",
        "actor clip=0.2 token replay=True T=0.7",
    ]


def test_in_a_critic_only_step_the_actor_stays() -> None:
    trainer, metrics = _learn(actor_moves=False)
    assert not any(call.startswith("actor") for call in trainer.calls)
    assert "ppo/loss" not in metrics
    assert metrics["critic/loss"] == 1.0


def test_advantages_are_the_reward_less_the_critics_value_from_before_its_update() -> None:
    trainer, metrics = _learn()
    for item, reward in zip(trainer.items, REWARDS, strict=True):
        mask = item.sample.loss_mask
        np.testing.assert_allclose(item.advantages_N[mask], reward - 0.3, atol=1e-6)
        np.testing.assert_allclose(item.returns_N[mask], reward, atol=1e-6)
        np.testing.assert_allclose(item.old_values_N[mask], 0.3, atol=1e-6)
    assert metrics["ppo/tokens"] == sum(int(item.sample.loss_mask.sum()) for item in trainer.items)


def test_the_figures_of_every_sampled_token_are_told_as_they_entered_the_update() -> None:
    samples = [_sample(0, 9), _sample(1, 12)]
    trainer = RecordingTrainer()
    told = learn(
        trainer, samples, REWARDS, CONFIG, groups=["a", "b"], version=1, temperature=1.0, actor_moves=True
    ).tokens
    for sample, reward, said in zip(samples, REWARDS, told, strict=True):
        drawn = sample.logprobs[sample.loss_mask]
        np.testing.assert_allclose(said.behaviour, drawn + 0.25, rtol=1e-6)
        np.testing.assert_allclose(said.current, drawn + 0.75, rtol=1e-6)
        np.testing.assert_allclose(said.advantages, np.full(len(drawn), reward - 0.3), atol=1e-6)
        np.testing.assert_allclose(said.values, np.full(len(drawn), 0.3), atol=1e-6)


def test_the_ratio_is_taken_against_the_trainers_own_snapshot_not_against_the_sampler() -> None:
    trainer, _ = _learn()
    for item in trainer.items:
        mask = item.sample.loss_mask
        np.testing.assert_allclose(item.old_logprobs_N[mask], item.sample.logprobs[mask] + 0.25, rtol=1e-6)


def test_the_three_gaps_are_told_apart() -> None:
    _, metrics = _learn()
    assert metrics["gap/engine_token_mean"] == pytest.approx(0.25, abs=1e-6)
    assert metrics["gap/policy_token_mean"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["gap/total_token_mean"] == pytest.approx(0.75, abs=1e-6)


def test_whitened_advantages_have_mean_0_and_deviation_1_over_trainable_tokens() -> None:
    trainer, metrics = _learn(CONFIG.model_copy(update={"whiten_advantages": True}))
    tokens = np.concatenate([item.advantages_N[item.sample.loss_mask] for item in trainer.items])
    assert tokens.mean() == pytest.approx(0, abs=1e-6)
    assert tokens.std() == pytest.approx(1, abs=0.05)
    assert metrics["ppo/adv_std"] == pytest.approx(0.15, abs=0.02)


def test_a_trial_is_one_mean_of_the_gap_however_many_chunks_it_has() -> None:
    samples = [_sample(0, 9, "split"), _sample(1, 20, "split"), _sample(2, 9, "whole")]
    trainer = RecordingTrainer()
    gaps = [0.1, 0.1, 0.4]
    trainer.logprobs = lambda chunks, **_: [  # type: ignore[method-assign]
        np.where(s.loss_mask, s.logprobs + gap, 0).astype(np.float32) for s, gap in zip(chunks, gaps, strict=True)
    ]
    groups = [sample.trial_id for sample in samples]
    result = learn(trainer, samples, [0.1] * 3, CONFIG, groups=groups, version=1, temperature=1.0, actor_moves=False)
    assert result.metrics["gap/engine_trial_mean"] == pytest.approx((0.1 + 0.4) / 2, abs=1e-6)


def test_the_shape_of_each_gap_is_told_with_its_tokens() -> None:
    trainer, metrics = _learn()
    d = 0.25
    assert metrics["gap/engine_k3"] == pytest.approx(np.exp(d) - d - 1, rel=1e-5)
    assert metrics["gap/policy_frac_gt_ln2"] == 0
    assert metrics["gap/frac_gt_ln2"] == 1  # in total 0.75 > ln 2
    assert metrics["gap/engine_ess"] == pytest.approx(1, abs=1e-6)
    assert metrics["gap/tokens"] == sum(int(item.sample.loss_mask.sum()) for item in trainer.items)


def test_what_a_correction_would_do_is_measured_and_nothing_of_it_is_done() -> None:
    trainer, metrics = _learn(engine_gap=1.0)
    plain, _ = _learn(engine_gap=0.0)
    for item, other in zip(trainer.items, plain.items, strict=True):
        np.testing.assert_array_equal(item.advantages_N, other.advantages_N)
    assert metrics["correction/weight_mean"] == 1
    assert metrics["correction/tis_capped"] == 1  # e > 2
    assert metrics["correction/tis_weight_mean"] == 2
    assert metrics["correction/icepop_dropped"] == 0  # e < 5
    assert metrics["correction/sequence_k3_dropped"] == 1
    assert metrics["correction/sequence_ratio_dropped"] == 1
    assert metrics["correction/streams"] == 2


@pytest.mark.parametrize(
    ("apply", "weight"),
    [(("tis",), 2.0), (("icepop",), np.e), (("sequence_k3",), 0.0), (("tis", "sequence_ratio"), 0.0)],
)
def test_an_applied_correction_weighs_the_advantages(apply: tuple[str, ...], weight: float) -> None:
    corrections = CONFIG.corrections.model_copy(update={"apply": apply})
    trainer, metrics = _learn(CONFIG.model_copy(update={"corrections": corrections}), engine_gap=1.0)
    for item, reward in zip(trainer.items, REWARDS, strict=True):
        mask = item.sample.loss_mask
        np.testing.assert_allclose(item.advantages_N[mask], weight * (reward - 0.3), rtol=1e-5)
        np.testing.assert_allclose(item.returns_N[mask], reward, atol=1e-6)  # the critic's target is not touched
    assert metrics["correction/weight_mean"] == pytest.approx(weight, rel=1e-5)


def _baseline(algorithm: str, **changes: Any) -> PpoConfig:
    document = {"algorithm": algorithm, "actor": ACTOR, "group_size": 2, "clip": 4e-4 if algorithm == "gspo" else 0.2}
    return PpoConfig.model_validate(document | changes)


@pytest.mark.parametrize(("algorithm", "level"), [("grpo", "token"), ("gspo", "sequence")])
def test_a_baseline_compares_the_trials_of_a_task_and_asks_for_no_critic(algorithm: str, level: str) -> None:
    samples = [_sample(0, 9), _sample(1, 12), _sample(2, 9), _sample(3, 12)]
    trainer, metrics = _learn(
        _baseline(algorithm), samples=samples, rewards=[0.4, 0.1, 0.2, 0.2], groups=["a", "a", "b", "b"]
    )
    assert not any(call in ("values", "critic") for call in trainer.calls)
    assert f" {level} " in trainer.calls[-1]
    for item, gain in zip(trainer.items, [0.5**0.5, -(0.5**0.5), 0, 0], strict=True):
        np.testing.assert_allclose(item.advantages_N[item.sample.loss_mask], gain, rtol=1e-5)
        assert not item.advantages_N[~item.sample.loss_mask].any()
        assert item.returns_N is None
    assert "critic/explained_variance" not in metrics
    assert (metrics["group/count"], metrics["group/zero_variance"], metrics["group/all_zero"]) == (2, 0.5, 0)


def test_a_trial_in_several_chunks_counts_once_in_its_group() -> None:
    samples = [_sample(0, 9, "x"), _sample(1, 9, "x"), _sample(2, 9, "x"), _sample(3, 9, "y")]
    trainer, metrics = _learn(_baseline("grpo"), samples=samples, rewards=[0.3, 0.3, 0.3, 0.1], groups=["a"] * 4)
    gains = [item.advantages_N[item.sample.loss_mask][0] for item in trainer.items]
    np.testing.assert_allclose(gains, [0.5**0.5] * 3 + [-(0.5**0.5)], rtol=1e-5)
    assert metrics["group/size_mean"] == 2


def test_length_adaptive_advantages_leave_the_critics_targets_alone() -> None:
    assert CONFIG.critic is not None
    critic = CONFIG.critic.model_copy(update={"length_adaptive": 0.5})
    trainer, metrics = _learn(CONFIG.model_copy(update={"critic": critic}))
    plain, _ = _learn()
    for item, other in zip(trainer.items, plain.items, strict=True):
        np.testing.assert_array_equal(item.returns_N, other.returns_N)
        assert not np.allclose(item.advantages_N, other.advantages_N)
    lengths = [int(item.sample.loss_mask.sum()) for item in trainer.items]
    assert metrics["ppo/lambda_mean"] == pytest.approx(np.mean([1 - 1 / (0.5 * length) for length in lengths]))
