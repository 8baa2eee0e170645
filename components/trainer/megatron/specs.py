"""Builds the models: a Qwen3-MoE or Qwen3.5-MoE actor and its critic, as Megatron-Core GPT models.

Invariant: dropout is 0 and no kernel that needs CUDA is chosen, so `platform` is all that differs between machines; the
two models share nothing, whatever the actor ties.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from components.config import ModelConfig
from components.trainer.megatron.hybrid import hybrid_layers, hybrid_settings
from components.trainer.megatron.modules import PackedAttention, RMSNorm, StackedExperts, ValueHead


def transformer_config(model: ModelConfig, *, perform_initialization: bool = True) -> Any:
    """Megatron's configuration of `model`. Its network sets the auxiliary loss coefficient in it, a step at a time."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.moe_intermediate_size,
        moe_ffn_hidden_size=model.moe_intermediate_size,
        num_moe_experts=model.num_experts,
        moe_router_topk=model.num_experts_per_tok,
        moe_router_score_function="softmax",
        moe_router_pre_softmax=False,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.0,
        moe_router_fusion=False,
        moe_token_dispatcher_type="allgather",
        init_method_std=model.init_std,
        layernorm_epsilon=model.rms_norm_eps,
        normalization="RMSNorm",
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        use_cpu_initialization=True,
        perform_initialization=perform_initialization,
        params_dtype=torch.float32,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        **hybrid_settings(model),
    )


def build_actor(model: ModelConfig, seed: int) -> Any:
    """A language model with fresh weights: normal, `init_std`; output projections smaller by sqrt(2 L)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(model, tied=model.tie_word_embeddings)


def build_critic(model: ModelConfig) -> Any:
    """The same backbone with a value head of zeros, its weights for the caller to set. It never ties its embedding."""
    critic = _build(model, tied=False, perform_initialization=False)
    critic.output_layer = ValueHead(critic.config)
    return critic


def _build(model: ModelConfig, *, tied: bool, perform_initialization: bool = True) -> Any:
    from megatron.core.models.gpt import GPTModel

    config = transformer_config(model, perform_initialization=perform_initialization)
    return GPTModel(
        config=config,
        transformer_layer_spec=_layer_spec(config, model),
        vocab_size=model.vocab_size,
        max_sequence_length=model.max_position_embeddings,
        position_embedding_type="rope",
        rotary_base=model.rope_theta,
        rotary_percent=1.0 if model.hybrid is None else model.hybrid.partial_rotary_factor,
        share_embeddings_and_output_weights=tied,
    )


def _layer_spec(config: Any, model: ModelConfig) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.spec_utils import ModuleSpec

    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    spec.layer_norm = RMSNorm
    for layer in spec.layer_specs:
        layer.submodules.input_layernorm = RMSNorm
        layer.submodules.pre_mlp_layernorm = RMSNorm
        layer.submodules.mlp.submodules.experts = ModuleSpec(module=StackedExperts)
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = PackedAttention
        attention.q_layernorm = RMSNorm
        attention.k_layernorm = RMSNorm
    if model.hybrid is not None:
        spec.layer_specs = hybrid_layers(dict(enumerate(spec.layer_specs)), model)
    return spec
