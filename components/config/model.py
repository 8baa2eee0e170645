"""The model's architecture and shape, in Hugging Face's names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from components.config.section import Section


class HybridConfig(Section):
    """What Qwen3.5-MoE has beside Qwen3-MoE: gated delta net layers, gated attention, a gated shared expert."""

    full_attention_interval: int = Field(4, ge=1)
    """Every so many layers one attends to everything before it; the layers between are gated delta nets."""
    linear_num_key_heads: int = Field(ge=1)
    linear_num_value_heads: int = Field(ge=1)
    linear_key_head_dim: int = Field(ge=4)
    linear_value_head_dim: int = Field(ge=4)
    linear_conv_kernel_dim: int = Field(4, ge=2)
    shared_expert_intermediate_size: int = Field(ge=8)
    partial_rotary_factor: float = Field(0.25, gt=0, le=1)
    """Share of each attention head that is rotated by its position."""

    @model_validator(mode="after")
    def _heads(self) -> HybridConfig:
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError("linear_num_value_heads must be a multiple of linear_num_key_heads")
        return self


class ModelConfig(Section):
    """Where the base model comes from, and its shape: a Qwen3-MoE or a Qwen3.5-MoE, in Hugging Face's names."""

    path: str | None = None
    """Folder of a Hugging Face checkpoint to start from. Absent: the `base` stage trains one from demonstrations."""
    architecture: Literal["qwen3_moe", "qwen3_5_moe"] = "qwen3_moe"
    hybrid: HybridConfig | None = None
    """Required with `architecture: qwen3_5_moe`, refused otherwise."""
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

    @property
    def full_attention_layers(self) -> tuple[int, ...]:
        """Places, from 0, of the layers that attend; the others are gated delta nets."""
        every = 1 if self.hybrid is None else self.hybrid.full_attention_interval
        return tuple(range(every - 1, self.num_hidden_layers, every))

    @model_validator(mode="after")
    def _fits(self) -> ModelConfig:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} exceeds num_experts {self.num_experts}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if (self.architecture == "qwen3_5_moe") != (self.hybrid is not None):
            raise ValueError("hybrid is required with architecture: qwen3_5_moe and refused with qwen3_moe")
        if self.hybrid is not None and (rotated := self.head_dim * self.hybrid.partial_rotary_factor) % 2:
            raise ValueError(f"hybrid.partial_rotary_factor rotates {rotated:g} of {self.head_dim}, not an even number")
        return self
