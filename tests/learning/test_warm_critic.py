"""What a critic's warm-up is for: RL that begins with a warm critic knows from its first step what returns to expect.

The learner itself, on streams whose return follows from a token of their prompt; no sandboxes. The same by the real
stages, on executed tasks: `benchmarks.critic`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from components.config import CriticConfig, ModelConfig, OptimizerConfig, PpoConfig, TrainerConfig
from components.learning.ppo_step import learn
from components.records import Sample
from components.trainer import Trainer
from components.trainer.megatron import MegatronTrainer
from tests.conformance.trainer_suite import random_sample

MODEL = ModelConfig(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    vocab_size=260,
)
PPO = PpoConfig(
    actor=OptimizerConfig(lr=1e-4, weight_decay=0.0),
    critic=CriticConfig(optimizer=OptimizerConfig(lr=3e-3, weight_decay=0.0, warmup_steps=5), loss_scale=10.0),
    whiten_advantages=True,
)
BATCH, WARMUP, STEPS, EARLY = 24, 20, 6, 4
Batch = tuple[list[Sample], list[float]]


def batch_of(generator: np.random.Generator) -> Batch:
    """Streams that begin with one of four tokens, each of which is worth another return."""
    samples, rewards = [], []
    for number in range(BATCH):
        kind = int(generator.integers(4))
        sample = random_sample(generator, MODEL, int(generator.integers(12, 24)))
        tokens = sample.tokens.copy()
        tokens[:2] = kind
        samples.append(replace(sample, tokens=tokens, trial_id=f"t{number}"))
        rewards.append(kind / 20)
    return samples, rewards


def trainer(seed: int | None) -> MegatronTrainer:
    return MegatronTrainer(MODEL, TrainerConfig(), actor=PPO.actor, critic=PPO.critic, seed=seed)


def explained(learner: Trainer, generator: np.random.Generator, steps: int) -> list[float]:
    """Explained variance of each step, before its update."""
    found = []
    for step in range(steps):
        samples, rewards = batch_of(generator)
        groups = [sample.trial_id for sample in samples]
        settings = {"groups": groups, "version": step, "temperature": 1.0, "actor_moves": step >= 2}
        result = learn(learner, [replace(s, weight_version=step) for s in samples], rewards, PPO, **settings)
        found.append(result.metrics["critic/explained_variance"])
    return found


def contrast(seed: int, folder: Path) -> dict[str, list[float]]:
    """Cold and warm, from the same actor, on the same batches, none of which the warm-up saw."""
    first = trainer(seed)
    first.save_hf(folder / "actor")
    explained(first, np.random.default_rng([seed, 1]), WARMUP)
    first.save_hf(folder / "critic", what="critic")
    legs = {}
    for name in ("cold", "warm"):
        learner = trainer(None)
        learner.load_hf(folder / "actor")
        learner.load_hf(folder / "actor", what="critic_from_actor")
        if name == "warm":
            learner.load_hf(folder / "critic", what="critic")
        legs[name] = explained(learner, np.random.default_rng([seed, 2]), STEPS)
    return legs


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.nightly), pytest.param(3, marks=pytest.mark.nightly)]
)
def test_a_warm_critic_explains_returns_that_a_cold_one_does_not(tmp_path: Path, seed: int) -> None:
    legs = contrast(seed, tmp_path)
    assert legs["cold"][0] == pytest.approx(0, abs=1e-6), "a head of zeros"
    assert legs["warm"][0] > 0.5
    cold, warm = (np.mean(legs[name][:EARLY]) for name in ("cold", "warm"))
    assert warm > cold + 0.3
    assert min(legs["warm"]) > 0
