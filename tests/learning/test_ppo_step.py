"""The order of one update, and what enters it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.config import PpoConfig, load
from components.learning import learn
from components.records import Float32, Sample
from components.trainer import LearnItem

CONFIG = load("configs/miniature.yaml").ppo.model_copy(update={"whiten_advantages": False})
REWARDS = [0.4, 0.1]


def _sample(index: int, n: int) -> Sample:
    rng = np.random.default_rng(index)
    mask = np.zeros(n, dtype=np.bool_)
    mask[2:4] = mask[6:n] = True
    logprobs = np.where(mask, -rng.random(n), 0).astype(np.float32)
    return Sample(rng.integers(0, 50, n, dtype=np.int32), mask, logprobs, None, f"trial-{index}")


class RecordingTrainer:
    """A trainer whose figures are known and that notes what was asked of it, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.items: Sequence[LearnItem] = ()
        self.critic_moved = False

    def logprobs(self, samples: Sequence[Sample], *, weights: str, replay: bool, temperature: float) -> list[Float32]:
        self.calls.append(f"logprobs {weights} replay={replay} T={temperature:g}")
        shift = {"behaviour": 0.25, "current": 0.75}[weights]
        return [np.where(s.loss_mask, s.logprobs + shift, 0).astype(np.float32) for s in samples]

    def values(self, samples: Sequence[Sample]) -> list[Float32]:
        self.calls.append("values")
        level = 9.0 if self.critic_moved else 0.3
        return [np.where(s.loss_mask, level, 0).astype(np.float32) for s in samples]

    def critic_step(self, items: Sequence[LearnItem], *, value_clip: float, scale: float) -> dict[str, float]:
        self.calls.append(f"critic clip={value_clip:g} scale={scale:g}")
        self.critic_moved = True
        self.items = items
        return {"loss": 1.0}

    def actor_step(
        self, items: Sequence[LearnItem], *, clip: float, temperature: float, replay: bool = True
    ) -> dict[str, float]:
        self.calls.append(f"actor clip={clip:g} replay={replay}")
        return {"loss": 2.0}

    def rotate(self) -> None:
        self.calls.append("rotate")

    def sft_step(self, samples: Sequence[Sample], **_: Any) -> dict[str, float]:
        raise AssertionError("no supervised step belongs here")

    def load_hf(self, folder: Path, **_: Any) -> None:
        raise AssertionError("nothing is loaded here")

    def save_hf(self, folder: Path) -> None:
        raise AssertionError("nothing is saved here")

    save = load = save_hf


def _learn(config: PpoConfig = CONFIG, *, actor_moves: bool = True) -> tuple[RecordingTrainer, dict[str, float]]:
    trainer = RecordingTrainer()
    samples = [_sample(0, 9), _sample(1, 12)]
    result = learn(trainer, samples, REWARDS, config, temperature=1.0, actor_moves=actor_moves)
    return trainer, result.metrics


def test_everything_is_measured_before_a_weight_moves_and_the_critic_moves_first() -> None:
    trainer, _ = _learn()
    assert trainer.calls == [
        "logprobs behaviour replay=True T=1",
        "logprobs current replay=True T=1",
        "values",
        "critic clip=0.2 scale=10",
        "rotate",
        "actor clip=0.2 replay=True",
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
