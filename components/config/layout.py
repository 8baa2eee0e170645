"""How a trainer is spread over processes, and which of the machine's kernels it uses.

Invariant: a layout that cannot run is refused before anything starts, with what to change.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from components.config.model import ModelConfig
from components.config.section import Section

NEVER = {
    "moe_router_fusion": (
        "is refused: a fused router ignores replayed routing, so that the trainer would not use the experts that the "
        "sampler used; remove it"
    )
}
"""Switches of Megatron that have no key here, and never will."""


class LayoutConfig(Section):
    """How one trainer is spread over processes. Everything 1 is one process, in the stage's own."""

    tp: int = Field(1, ge=1)
    """Tensor parallelism, with sequence parallelism: every matrix outside the experts is cut, and so are the rows."""
    pp: int = Field(1, ge=1)
    """Pipeline stages, each with an equal number of layers; micro-batches run one forward, one backward (1F1B)."""
    cp: int = Field(1, ge=1)
    """Context parallelism: every stream is cut into 2 cp pieces, a rank takes one from each end."""
    dp: int = Field(1, ge=1)
    """Data parallelism: whole micro-batches are dealt out."""
    ep: int = Field(1, ge=1)
    """Expert parallelism, over the ranks of one pipeline stage: it must divide tp * cp * dp."""

    @property
    def world(self) -> int:
        """Processes."""
        return self.tp * self.pp * self.cp * self.dp

    @model_validator(mode="after")
    def _experts(self) -> LayoutConfig:
        ranks = self.tp * self.cp * self.dp
        if ranks % self.ep:
            raise ValueError(
                f"ep {self.ep} must divide tp * cp * dp = {ranks}: experts are spread over the ranks of one stage; "
                "lower ep, or raise dp"
            )
        return self


class KernelsConfig(Section):
    """Paths that exist on GPUs only. Each is refused where it cannot run, and never replaced by another."""

    transformer_engine: bool = False
    """Attention, linear layers and norms of Transformer Engine in place of our own attention and Megatron's layers."""
    grouped_gemm: bool = False
    """Megatron's grouped experts in place of ours (`torch.nn.functional.grouped_mm`)."""
    fusions: bool = False
    """Fused rotary embedding, SwiGLU and token permutation. Never the router: a fused one ignores replayed routing."""

    @model_validator(mode="after")
    def _depends(self) -> KernelsConfig:
        if self.fusions and not self.transformer_engine:
            raise ValueError("fusions come with Transformer Engine: set transformer_engine true, or fusions false")
        return self


def layout_problems(layout: LayoutConfig, model: ModelConfig) -> list[str]:
    """Why `model` cannot be cut this way; empty when it can."""
    cuts = [
        ("tp", layout.tp, "model.num_attention_heads", model.num_attention_heads),
        ("tp", layout.tp, "model.num_key_value_heads", model.num_key_value_heads),
        ("tp", layout.tp, "model.vocab_size", model.vocab_size),
        ("pp", layout.pp, "model.num_hidden_layers", model.num_hidden_layers),
        ("ep", layout.ep, "model.num_experts", model.num_experts),
    ]
    if (hybrid := model.hybrid) is not None:
        cuts += [
            ("tp", layout.tp, "model.hybrid.linear_num_key_heads", hybrid.linear_num_key_heads),
            ("tp", layout.tp, "model.hybrid.shared_expert_intermediate_size", hybrid.shared_expert_intermediate_size),
        ]
    return [
        f"trainer.layout.{key} {parts} does not divide {name} {whole}: lower {key}, or change the model"
        for key, parts, name, whole in cuts
        if whole % parts
    ]
