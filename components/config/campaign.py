"""The configuration of a whole campaign."""

from __future__ import annotations

from pydantic import Field, model_validator

from components.config.consistency import inconsistencies
from components.config.evaluation import EvaluationConfig
from components.config.model import ModelConfig
from components.config.ppo import PpoConfig
from components.config.rollout import HarnessConfig, RewardConfig, RolloutConfig, SandboxConfig
from components.config.sampler import PublishConfig, SamplerConfig
from components.config.section import Problems, Section
from components.config.synthesis import SynthesisConfig
from components.config.training import BaseConfig, CheckpointsConfig, SftConfig, TrainerConfig
from components.config.world import PoolConfig


class RlConfig(Section):
    """How many steps, cut into how many legs."""

    legs: int = Field(3, ge=1)
    leg_steps: int = Field(10, ge=1)
    """Steps of one leg: one Prefect task, one Ray job, one checkpoint at its end, a commit after every step."""


class DiagnosisConfig(Section):
    """What follows from a diagnosis."""

    pause_on_red: bool = False
    """Holds the campaign after a leg whose diagnosis is red, until a person resumes its flow run; the next leg then
    waits for the evaluation of the one before it, which otherwise runs beside it."""


class CampaignConfig(Section):
    """One campaign: a base model, a pool, and everything that is done with them."""

    name: str = Field("miniature", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Names the campaign in Prefect, MLflow and the artifact store. The same name and configuration continue it."""
    seed: int = Field(1, ge=0, lt=2**32)
    model: ModelConfig = ModelConfig()
    pool: PoolConfig = PoolConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    """How the flow `synthesize` grows the training tasks. A campaign that trains on them imports them."""
    base: BaseConfig | None = None
    """How the base model is trained when `model.path` is absent."""
    sft: SftConfig
    rl: RlConfig = RlConfig()
    ppo: PpoConfig
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    harness: HarnessConfig = HarnessConfig()
    sandbox: SandboxConfig = SandboxConfig()
    sampler: SamplerConfig = SamplerConfig()
    publish: PublishConfig = PublishConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    diagnosis: DiagnosisConfig = DiagnosisConfig()

    def sampler_seed(self, stage: str, index: int) -> int:
        """Of the first start of a job's first sampler. No two jobs of a campaign draw alike."""
        return self.seed * 1_000 + {"evaluate": 500, "rejection": 900}.get(stage, 0) + index

    @model_validator(mode="after")
    def _consistent(self) -> CampaignConfig:
        if found := inconsistencies(self):
            raise Problems(found)
        return self
