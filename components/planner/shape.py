"""What a model weighs: parameters by kind, and bytes that grow with tokens and sequences.

Invariant: every count follows from the shape alone. Embedding and output layer are two matrices unless they are tied. A
gated delta net holds a state a sequence; only the layers that attend have a key-value cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.config import HybridConfig, ModelConfig

BF16, FP32, INT32 = 2, 4, 4
"""Bytes of one element."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes that memory depends on.

    Attributes:
        layers: L; every one has a router and experts.
        full_attention_layers: those that attend and keep a key-value cache; the rest are gated delta nets.
        key_value_heads: of a layer that attends; tensor parallelism shares them out.
        vocab: |V|, rows of the output layer.
        experts, topk: E and K.
        expert_parameters: P_e, the routed experts of all layers.
        dense_parameters: P_d, everything else: embedding, output layer, attention, delta nets, shared experts, routers.
        kv_bytes_per_token: key-value cache of one token, bf16.
        state_bytes_per_sequence: recurrent states (float32) and convolution windows (bf16) of one sequence.
        kept_bytes_per_token: inputs that full recomputation keeps of one layer, bf16.
        work_bytes_per_token: what one layer holds while it is recomputed and differentiated.
    """

    layers: int
    full_attention_layers: int
    key_value_heads: int
    vocab: int
    experts: int
    topk: int
    expert_parameters: int
    dense_parameters: int
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    kept_bytes_per_token: int
    work_bytes_per_token: int

    @staticmethod
    def of(model: ModelConfig) -> ModelShape:
        """The sizes of a model."""
        full = len(model.full_attention_layers)
        hidden, inner, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
        query, key = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
        gated = model.hybrid is not None
        attention = hidden * ((1 + gated) * query + 2 * key) + query * hidden + 2 * model.head_dim
        every_layer = 2 * hidden + experts * hidden
        delta = state = shared = 0
        widest = (1 + gated) * query + 2 * key + query
        if model.hybrid is not None:
            delta, state, wide = _delta_net(model.hybrid, hidden)
            shared = 3 * model.hybrid.shared_expert_intermediate_size * hidden + hidden
            widest = max(widest, wide) + 3 * model.hybrid.shared_expert_intermediate_size + hidden
        heads = 1 if model.tie_word_embeddings else 2
        linear = model.num_hidden_layers - full
        routed = model.num_experts_per_tok * (2 * hidden + 3 * inner)
        return ModelShape(
            layers=model.num_hidden_layers,
            full_attention_layers=full,
            key_value_heads=model.num_key_value_heads,
            vocab=model.vocab_size,
            experts=experts,
            topk=model.num_experts_per_tok,
            expert_parameters=model.num_hidden_layers * experts * 3 * hidden * inner,
            dense_parameters=heads * model.vocab_size * hidden
            + hidden
            + full * attention
            + linear * delta
            + model.num_hidden_layers * (every_layer + shared),
            kv_bytes_per_token=full * 2 * key * BF16,
            state_bytes_per_sequence=linear * state,
            kept_bytes_per_token=hidden * BF16,
            # Values and their gradients.
            work_bytes_per_token=2 * BF16 * (2 * hidden + widest + routed),
        )

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.expert_parameters + self.dense_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through: K experts a layer, and everything dense."""
        return self.expert_parameters * self.topk // self.experts + self.dense_parameters

    def routing_bytes_per_token(self, itemsize: int | None = None) -> int:
        """A routing record's bytes a token: L x K experts, of `itemsize` bytes or the narrowest unsigned integers."""
        narrow = 1 if self.experts <= 256 else 2
        return self.layers * self.topk * (narrow if itemsize is None else itemsize)


def _delta_net(hybrid: HybridConfig, hidden: int) -> tuple[int, int, int]:
    """Parameters of a gated delta net, bytes of its state, and elements a token that it works on."""
    keys = hybrid.linear_num_key_heads * hybrid.linear_key_head_dim
    values = hybrid.linear_num_value_heads * hybrid.linear_value_head_dim
    heads, mixed = hybrid.linear_num_value_heads, 2 * keys + values
    parameters = hidden * (mixed + values + 2 * heads)
    parameters += mixed * hybrid.linear_conv_kernel_dim + 2 * heads + hybrid.linear_value_head_dim + values * hidden
    state = heads * hybrid.linear_key_head_dim * hybrid.linear_value_head_dim * FP32
    state += mixed * (hybrid.linear_conv_kernel_dim - 1) * BF16
    # The rule works in float32 (two bf16 elements each) on queries and keys repeated to the value heads.
    work = mixed + values + 2 * heads + 2 * (2 * heads * hybrid.linear_key_head_dim + values) + values
    return parameters, state, work
