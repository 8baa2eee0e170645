"""Configuration: frozen, validated whole before anything starts, dumped as JSON into every job's spec."""

from components.config.audit import AuditConfig, EndpointConfig, JudgeConfig, RepairConfig, SelectionConfig
from components.config.campaign import CampaignConfig, RlConfig
from components.config.evaluation import BENCHMARKS, HELDOUT, EvaluationConfig, HarborConfig, SuiteConfig
from components.config.layout import KernelsConfig, LayoutConfig, layout_problems
from components.config.lenient import Readable, readable
from components.config.load import digest, load, read, validate
from components.config.model import HybridConfig, ModelConfig
from components.config.ppo import (
    ClippedValueConfig,
    CorrectionsConfig,
    CriticConfig,
    CriticWarmupConfig,
    HlGaussConfig,
    PpoConfig,
)
from components.config.rollout import CompactionConfig, HarnessConfig, RewardConfig, RolloutConfig, SandboxConfig
from components.config.sampler import HealthConfig, PublishConfig, SamplerConfig, SGLangConfig
from components.config.synthesis import SynthesisConfig
from components.config.training import (
    BaseConfig,
    CheckpointsConfig,
    OptimizerConfig,
    RejectionConfig,
    SftConfig,
    SupervisedConfig,
    TeacherConfig,
    TrainerConfig,
)
from components.config.world import DemonstrationConfig, HabitConfig, ImportConfig, PoolConfig, ProbeConfig

__all__ = [
    "BENCHMARKS",
    "HELDOUT",
    "AuditConfig",
    "BaseConfig",
    "CampaignConfig",
    "CheckpointsConfig",
    "ClippedValueConfig",
    "CompactionConfig",
    "CorrectionsConfig",
    "CriticConfig",
    "CriticWarmupConfig",
    "DemonstrationConfig",
    "EndpointConfig",
    "EvaluationConfig",
    "HabitConfig",
    "HarborConfig",
    "HarnessConfig",
    "HealthConfig",
    "HlGaussConfig",
    "HybridConfig",
    "ImportConfig",
    "JudgeConfig",
    "KernelsConfig",
    "LayoutConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PoolConfig",
    "PpoConfig",
    "ProbeConfig",
    "PublishConfig",
    "Readable",
    "RejectionConfig",
    "RepairConfig",
    "RewardConfig",
    "RlConfig",
    "RolloutConfig",
    "SGLangConfig",
    "SamplerConfig",
    "SandboxConfig",
    "SelectionConfig",
    "SftConfig",
    "SuiteConfig",
    "SupervisedConfig",
    "SynthesisConfig",
    "TeacherConfig",
    "TrainerConfig",
    "digest",
    "layout_problems",
    "load",
    "read",
    "readable",
    "validate",
]
