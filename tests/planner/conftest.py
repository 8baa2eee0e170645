"""The paper's model, and the two smaller ones of its family, from their shapes."""

from __future__ import annotations

from components.config import HybridConfig, ModelConfig

QWEN35_122B = ModelConfig(
    architecture="qwen3_5_moe",
    hybrid=HybridConfig(
        linear_num_key_heads=16,
        linear_num_value_heads=64,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        shared_expert_intermediate_size=1_024,
    ),
    num_hidden_layers=48,
    hidden_size=3_072,
    num_attention_heads=32,
    num_key_value_heads=2,
    head_dim=256,
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=1_024,
    vocab_size=248_320,
    rope_theta=1e7,
    max_position_embeddings=262_144,
    tie_word_embeddings=False,
)
QWEN3_30B = ModelConfig(
    num_hidden_layers=48,
    hidden_size=2_048,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    vocab_size=151_936,
    rope_theta=1e6,
    max_position_embeddings=40_960,
    tie_word_embeddings=False,
)
