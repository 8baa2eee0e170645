"""The Megatron backend against the suite of all trainers."""

from __future__ import annotations

import pytest

from components.config import CriticConfig, ModelConfig, OptimizerConfig, TrainerConfig
from components.trainer.megatron import MegatronTrainer
from tests.conformance.trainer_suite import ADAM, Make, TrainerSuite


class TestMegatron(TrainerSuite):
    @pytest.fixture
    def make(self, model: ModelConfig) -> Make:
        def build(
            *,
            actor: OptimizerConfig = ADAM,
            critic: CriticConfig | None = None,
            micro_batch_tokens: int = 8_192,
            seed: int = 1,
            snapshots: int = 1,
        ) -> MegatronTrainer:
            config = TrainerConfig(micro_batch_tokens=micro_batch_tokens)
            return MegatronTrainer(model, config, actor=actor, critic=critic, seed=seed, snapshots=snapshots)

        return build
