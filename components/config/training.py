"""How weights are changed: optimizers, pretraining, SFT, the trainer's backend."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from components.config.audit import EndpointConfig
from components.config.layout import KernelsConfig, LayoutConfig
from components.config.section import Section
from components.config.world import DemonstrationConfig


class OptimizerConfig(Section):
    """One optimizer of one model."""

    kind: Literal["adam", "muon"] = "adam"
    """`muon` orthogonalises the update of every matrix but embeddings, router and heads, which stay on Adam."""
    lr: float = Field(gt=0)
    matrix_lr: float | None = Field(None, gt=0)
    """Learning rate of the Muon matrices; required with `kind: muon`, refused otherwise."""
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    warmup_steps: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _matrix_lr(self) -> OptimizerConfig:
        if (self.kind == "muon") != (self.matrix_lr is not None):
            raise ValueError("matrix_lr is required with kind: muon and refused with kind: adam")
        return self


class SupervisedConfig(Section):
    """A supervised stage: next-token loss on the assistant tokens of trajectories."""

    tokens: int = Field(ge=1)
    """Tokens seen, trajectories repeated as needed."""
    batch_tokens: int = Field(1_024, ge=64)
    optimizer: OptimizerConfig
    constant_share: float = Field(0.5, ge=0, le=1)
    """Share of the tokens at constant learning rate; then linear decay."""
    final_lr_share: float = Field(0.03, ge=0, le=1)
    aux_loss_coef: float = Field(0.005, ge=0)
    """Load-balancing coefficient a layer. Always 0 in RL: it would fight replayed routing."""


class BaseConfig(SupervisedConfig):
    """How a base model is made, where none is given."""

    demonstrations: DemonstrationConfig


class TeacherConfig(EndpointConfig):
    """A model that plays the trials in place of the checkpoint."""

    api_key_env: str | None = Field("TEACHER_API_KEY", pattern=r"^[A-Z_][A-Z0-9_]*$")
    """The environment variable that holds the key, where jobs run. None: the endpoint asks for none."""
    structured: Literal["none"] = "none"
    """Its answers are the harness's, which says their form itself."""


class RejectionConfig(Section):
    """Trials on the pool's training tasks, of which SFT learns from those that pass (rejection sampling)."""

    teacher: TeacherConfig | None = None
    """None: the checkpoint that SFT begins with plays them, at `rollout.temperature`."""
    attempts: int = Field(4, ge=1)
    """Trials of each task."""
    tasks: int | None = Field(None, ge=1)
    """Of the training tasks, at most as many, by a seeded choice. None: all."""
    bar: float = Field(1.0, gt=0, le=1)
    """Share of a task's credited assertions that a trial must have passed. 1: it must have solved the task."""
    per_task: int | None = Field(10, ge=1)
    """Trials of one task that are learned from, by a seeded choice. None: any number."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest stream that is learned from. None: whatever the harness's wall allows."""


class SftConfig(SupervisedConfig):
    """SFT learns from scripted demonstrations, or from trials that passed."""

    demonstrations: DemonstrationConfig | None = None
    """Of the miniature's own tasks, which alone have any."""
    rejection: RejectionConfig | None = None

    @model_validator(mode="after")
    def _one_source(self) -> SftConfig:
        if (self.demonstrations is None) == (self.rejection is None):
            raise ValueError("exactly one of demonstrations and rejection says what is learned from")
        return self


class CheckpointsConfig(Section):
    """Which of the trainer's states are kept; a state is weights, moments and snapshot. Checkpoints, which are weights
    alone and registered, are never deleted."""

    keep_last: int = Field(2, ge=1)
    """Of a stage's commits. When the last state is found damaged, the one before is continued from."""
    keep_best: bool = True
    """Keep the state of the leg whose checkpoint has the best held-out pass rate, for as long as it has."""


class TrainerConfig(Section):
    """The Megatron-Core backend."""

    micro_batch_tokens: int = Field(8_192, ge=128)
    """Upper bound of tokens of one micro-batch. Streams are packed whole, so it also bounds the longest stream."""
    threads: int = Field(1, ge=1)
    """Torch threads of a trainer process. Two help on an idle machine and stall on a busy one."""
    layout: LayoutConfig = LayoutConfig()
    device_memory_gib: float | None = Field(None, gt=0)
    """Memory of one GPU that trains: the layout is held against it before anything starts (Eq 21). Absent, the trainer
    runs on processors, in the machine's own memory."""
    dispatcher: Literal["allgather", "alltoall", "deepep"] = "allgather"
    """How tokens reach the experts of other ranks. `allgather` pads the micro-batches of these ranks to one length."""
    distributed_optimizer: bool = False
    """Optimizer state is cut over the data-parallel ranks. Muon needs whole matrices and refuses it."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations computed again in the backward pass: none, attention and experts, or whole layers."""
    kernels: KernelsConfig = KernelsConfig()
    collective_timeout_s: float = Field(1_800.0, gt=0)
    """A rank that waits longer for the others gives up, and the trainer with it."""

    @model_validator(mode="after")
    def _dispatch(self) -> TrainerConfig:
        if self.dispatcher == "deepep" and self.layout.ep == 1:
            raise ValueError("dispatcher deepep needs experts on several ranks: set layout.ep, or dispatcher allgather")
        return self
