"""The configuration of a whole campaign."""

from __future__ import annotations

from pydantic import Field, ValidationError, model_validator

from components.config.evaluation import EvaluationConfig
from components.config.layout import layout_problems
from components.config.model import ModelConfig
from components.config.ppo import PpoConfig
from components.config.rollout import HarnessConfig, RewardConfig, RolloutConfig, SandboxConfig
from components.config.sampler import PublishConfig, SamplerConfig
from components.config.section import Section
from components.config.synthesis import SynthesisConfig
from components.config.training import CheckpointsConfig, SupervisedConfig, TrainerConfig
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
    seed: int = Field(1, ge=0)
    model: ModelConfig = ModelConfig()
    pool: PoolConfig = PoolConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    """How the flow `synthesize` grows the training tasks. A campaign that trains on them imports them."""
    base: SupervisedConfig | None = None
    """How the base model is trained when `model.path` is absent."""
    sft: SupervisedConfig
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

    @model_validator(mode="after")
    def _consistent(self) -> CampaignConfig:
        problems = []
        if (self.model.path is None) != (self.base is not None):
            problems.append("base is required when model.path is absent and refused when it is set")
        if self.evaluation.trials > self.pool.heldout_tasks or self.evaluation.leg_trials > self.pool.heldout_tasks:
            problems.append(f"evaluation asks for more trials than pool.heldout_tasks ({self.pool.heldout_tasks})")
        problems += self._batch_problems()
        wall, context = self.harness.max_context_tokens, self.sampler.context_tokens
        if wall > context:
            problems.append(f"harness.max_context_tokens {wall} exceeds sampler.context_tokens {context}")
        if self.sampler.engine == "embedded" and self.model.architecture != "qwen3_moe":
            problems.append(f"sampler.engine: embedded does not run {self.model.architecture}; give sglang servers")
        if (
            self.sampler.engine == "sglang"
            and self.model.architecture == "qwen3_moe"
            and self.model.tie_word_embeddings
        ):
            problems.append(
                "sampler.engine: sglang draws from a random output layer where a qwen3_moe ties its own to the "
                "embedding: set model.tie_word_embeddings to false"
            )
        if self.sampler.placement == "ray" and self.publish.method == "disk" and self.publish.folder is None:
            problems.append("sampler.placement: ray needs publish.folder, or publish.method: collective")
        if wall > self.model.max_position_embeddings:
            problems.append(f"harness.max_context_tokens {wall} exceeds model.max_position_embeddings")
        problems += self._profile_problems()
        if wall > self.trainer.micro_batch_tokens:
            problems.append(f"trainer.micro_batch_tokens cannot hold a trajectory of {wall} tokens")
        problems += layout_problems(self.trainer.layout, self.model)
        if self.ppo.algorithm == "gspo" and self.trainer.layout.cp > 1:
            problems.append("ppo.algorithm gspo needs whole streams, trainer.layout.cp cuts them: set it to 1")
        stages = {
            "base": self.base.optimizer if self.base else None,
            "sft": self.sft.optimizer,
            "ppo.actor": self.ppo.actor,
            "ppo.critic": self.ppo.critic.optimizer if self.ppo.critic else None,
        }
        muon = [name for name, optimizer in stages.items() if optimizer and optimizer.kind == "muon"]
        if self.trainer.distributed_optimizer and muon:
            problems.append(f"trainer.distributed_optimizer cuts matrices that muon needs whole ({', '.join(muon)})")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _profile_problems(self) -> list[str]:
        """Whether the profile of evaluations goes with the model, the samplers and the harness."""
        profile, name = self.evaluation.conditions, f"evaluation.profile {self.evaluation.profile}"
        problems = []
        if profile.context_tokens is not None:
            holds = {
                "sampler.context_tokens": self.sampler.context_tokens,
                "model.max_position_embeddings": self.model.max_position_embeddings,
            }
            problems += [
                f"{name} evaluates with a context of {profile.context_tokens} tokens, {key} is {value}"
                for key, value in holds.items()
                if value < profile.context_tokens
            ]
        if profile.compaction and self.harness.compaction is None:
            problems.append(f"{name} rewrites histories: say with which budget (harness.compaction)")
        try:
            HarnessConfig.model_validate(self.harness.model_dump() | profile.harness_limits)
        except ValidationError as error:
            problems += [
                f"{name}, with its own limits in force: {'.'.join(map(str, ('harness', *found['loc'])))}: "
                f"{found['msg'].removeprefix('Value error, ')}"
                for found in error.errors()
            ]
        return problems

    def _batch_problems(self) -> list[str]:
        """Whether a batch is made of whole groups of distinct tasks."""
        batch, group = self.rollout.batch, self.ppo.group_size
        problems = []
        if batch % group:
            problems.append(f"rollout.batch {batch} is not a multiple of ppo.group_size {group}")
        if batch > group * self.pool.train_tasks:
            problems.append(
                f"rollout.batch {batch} needs {batch // group} tasks, pool.train_tasks is {self.pool.train_tasks}"
            )
        warmup = self.ppo.warmup
        if warmup and batch > group * warmup.tasks:
            problems.append(
                f"rollout.batch {batch} needs {batch // group} tasks, ppo.critic.warmup.tasks is {warmup.tasks}"
            )
        return problems
