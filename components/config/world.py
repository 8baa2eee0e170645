"""What is learned from: the model's shape, the pool of tasks, the demonstrations."""

from __future__ import annotations

from pydantic import Field, model_validator

from components.config.section import Section


class ModelConfig(Section):
    """Where the base model comes from, and its shape: a Qwen3-MoE, in Hugging Face's names."""

    path: str | None = None
    """Folder of a Hugging Face checkpoint to start from. Absent: the `base` stage trains one from demonstrations."""
    num_hidden_layers: int = Field(2, ge=1)
    hidden_size: int = Field(128, ge=8, multiple_of=8)
    num_attention_heads: int = Field(4, ge=1)
    num_key_value_heads: int = Field(4, ge=1)
    head_dim: int = Field(32, ge=8, multiple_of=2)
    num_experts: int = Field(8, ge=2, le=65_535)
    num_experts_per_tok: int = Field(2, ge=1)
    moe_intermediate_size: int = Field(64, ge=8, multiple_of=8)
    vocab_size: int = Field(768, ge=260)
    """Size of the tokenizer that is trained on generated text; the embedding has as many rows."""
    rope_theta: float = Field(10_000.0, gt=0)
    rms_norm_eps: float = Field(1e-6, gt=0)
    max_position_embeddings: int = Field(2_048, ge=16)
    """Longest stream the samplers accept; written to config.json. The rotary embedding itself has no limit."""
    tie_word_embeddings: bool = True
    """The output layer is the embedding. The critic never ties."""
    init_std: float = Field(0.06, gt=0)
    """Standard deviation of the initial weights. 0.02 is too small at width 128: learning stalls."""

    @model_validator(mode="after")
    def _fits(self) -> ModelConfig:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} exceeds num_experts {self.num_experts}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        return self


class PoolConfig(Section):
    """Which tasks are trained on and which are held out."""

    train_tasks: int = Field(2_000, ge=1)
    heldout_tasks: int = Field(256, ge=1)
    min_subtasks: int = Field(1, ge=1, le=5)
    max_subtasks: int = Field(5, ge=1, le=5)
    """More would run out of names, and of the token wall of a terse trajectory."""
    oracle_runs: int = Field(1, ge=1)
    """Times the reference solution must reach the full report in a fresh box before a task is accepted."""
    noop_runs: int = Field(1, ge=1)
    """Times the untouched environment is verified; assertions that pass there earn no credit."""

    @model_validator(mode="after")
    def _ordered(self) -> PoolConfig:
        if self.min_subtasks > self.max_subtasks:
            raise ValueError(f"min_subtasks {self.min_subtasks} exceeds max_subtasks {self.max_subtasks}")
        return self


class HabitConfig(Section):
    """How often a demonstrator takes the documented wrong way (docs/miniature.md)."""

    blind_error_rate: float = Field(ge=0, le=1)
    """On the families where it does not know better."""
    other_error_rate: float = Field(ge=0, le=1)
    early_stop_rate: float = Field(ge=0, le=1)
    """Share of trajectories that claim completion one subtask early."""


class DemonstrationConfig(Section):
    """Scripted demonstrations, executed in real sandboxes."""

    trajectories: int = Field(ge=1)
    habits: HabitConfig
    repeats: int = Field(0, ge=0)
    """Documents beside them that say a random string of tokens twice. A fresh model learns to copy from them."""
