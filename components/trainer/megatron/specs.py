"""Builds the models: a Qwen3-MoE or Qwen3.5-MoE actor and its critic, as Megatron-Core GPT models.

Invariants: dropout is 0; a kernel that this machine does not have is refused, never replaced; the two models share
nothing, whatever the actor ties; fresh weights depend on the seed and not on the layout.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from components.config import KernelsConfig, ModelConfig, TrainerConfig
from components.errors import ConfigError
from components.trainer.megatron.hybrid import hybrid_layers, hybrid_settings
from components.trainer.megatron.modules import PackedAttention, RMSNorm, StackedExperts, ValueHead
from components.trainer.megatron.platform import cuda_as_cpu, device

RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "moe"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Megatron's settings of `trainer.recompute`."""

PACKAGES = {
    "transformer_engine": ("transformer_engine", "trainer.kernels.transformer_engine"),
    "grouped_gemm": ("grouped_gemm", "trainer.kernels.grouped_gemm"),
    "deepep": ("deep_ep", "trainer.dispatcher deepep"),
}
"""What a path on a GPU imports, and the key that asks for it."""


def check_kernels(config: TrainerConfig, model: ModelConfig, *, cuda: bool, installed: Callable[[str], bool]) -> None:
    """Refuses the paths that cannot run here.

    Raises:
        ConfigError: listing each path that the configuration asks for and this machine or this model lacks.
    """
    kernels = config.kernels
    wanted = {
        "transformer_engine": kernels.transformer_engine,
        # With Transformer Engine its grouped linear layers are used; without, the kernels of nv-grouped-gemm.
        "grouped_gemm": kernels.grouped_gemm and not kernels.transformer_engine,
        "deepep": config.dispatcher == "deepep",
    }
    problems = []
    if kernels.transformer_engine and model.hybrid is not None:
        problems.append(f"trainer.kernels.transformer_engine has no layers for a {model.architecture}; turn it off")
    if config.device_memory_gib is not None and not cuda:
        problems.append("trainer.device_memory_gib is of a GPU, and the trainer's machine has none; leave it out")
    for name, (package, key) in PACKAGES.items():
        if not wanted[name]:
            continue
        lacking = [] if cuda else ["CUDA"]
        lacking += [] if installed(package) else [f"the package {package}"]
        if lacking:
            problems.append(f"{key} needs {' and '.join(lacking)} on the trainer's machine; turn it off, or run there")
    if problems:
        raise ConfigError(problems, "trainer")


def check_machine(config: TrainerConfig, model: ModelConfig) -> None:
    """`check_kernels` on this machine."""
    cuda = torch.cuda.is_available()
    check_kernels(config, model, cuda=cuda, installed=lambda package: importlib.util.find_spec(package) is not None)


def transformer_config(
    model: ModelConfig, config: TrainerConfig | None = None, *, perform_initialization: bool = True
) -> Any:
    """Megatron's configuration of `model`. Its network sets the auxiliary loss coefficient in it, a step at a time."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = config or TrainerConfig()
    layout, kernels = config.layout, config.kernels
    made = TransformerConfig(
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
        moe_token_dispatcher_type="flex" if config.dispatcher == "deepep" else config.dispatcher,
        moe_flex_dispatcher_backend="deepep",
        moe_grouped_gemm=kernels.grouped_gemm,
        moe_permute_fusion=kernels.fusions,
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
        pipeline_dtype=torch.float32,
        bias_activation_fusion=kernels.fusions,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=kernels.fusions,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=layout.tp,
        sequence_parallel=layout.tp > 1,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=1,
        **RECOMPUTE[config.recompute],
        **hybrid_settings(model),
    )
    # Micro-batches differ in length. Megatron refuses this together with `allgather`, whose ranks need equal ones: ours
    # are padded to be (`Share.even`).
    made.variable_seq_lengths = True
    return made


def fresh_weights(model: ModelConfig, seed: int) -> dict[str, Any]:
    """Every parameter of an actor by name: normal, `init_std`; output projections smaller by sqrt(2 L).

    Megatron's state must be that of a model that is not cut.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = _build(model, TrainerConfig(), tied=model.tie_word_embeddings, perform_initialization=True)
    return {name: parameter.detach() for name, parameter in whole.named_parameters()}


def build_actor(model: ModelConfig, config: TrainerConfig) -> Any:
    """This rank's part of a language model. Its weights are not numbers until the caller sets them."""
    return _unset(_build(model, config, tied=model.tie_word_embeddings))


def build_critic(model: ModelConfig, config: TrainerConfig, width: int) -> Any:
    """The same backbone with a value head of zeros, `width` numbers a position. It never ties its embedding."""
    critic = _unset(_build(model, config, tied=False))
    if critic.post_process:
        critic.output_layer = ValueHead(critic.config, width).to(device())
    return critic


def _unset(module: Any) -> Any:
    """On this machine's device; a weight that nobody sets must be noticed."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    return module.to(device())


def _build(model: ModelConfig, config: TrainerConfig, *, tied: bool, perform_initialization: bool = False) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel

    made = transformer_config(model, config, perform_initialization=perform_initialization)
    with cuda_as_cpu():
        module = GPTModel(
            config=made,
            transformer_layer_spec=_layer_spec(made, model, config.kernels),
            vocab_size=model.vocab_size,
            max_sequence_length=model.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            position_embedding_type="rope",
            rotary_base=model.rope_theta,
            rotary_percent=1.0 if model.hybrid is None else model.hybrid.partial_rotary_factor,
            share_embeddings_and_output_weights=tied,
        )
    _mark_cut(module)
    return module


def _mark_cut(module: Any) -> None:
    """Says of every weight that tensor parallelism cuts along which dimension: Megatron does so only when it
    initializes them."""
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
        set_tensor_model_parallel_attributes,
    )

    for part in module.modules():
        if not isinstance(part, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
            continue
        if part.weight is not None and "tensor_model_parallel" not in vars(part.weight):
            set_tensor_model_parallel_attributes(part.weight, True, int(isinstance(part, RowParallelLinear)), 1)


def _layer_spec(made: Any, model: ModelConfig, kernels: KernelsConfig) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    spec = get_gpt_decoder_block_spec(made, use_transformer_engine=kernels.transformer_engine, normalization="RMSNorm")
    for layer in spec.layer_specs:
        if not kernels.grouped_gemm:
            layer.submodules.mlp.submodules.experts = ModuleSpec(module=StackedExperts)
    if kernels.transformer_engine:
        return spec
    spec.layer_norm = RMSNorm
    for layer in spec.layer_specs:
        layer.submodules.input_layernorm = RMSNorm
        layer.submodules.pre_mlp_layernorm = RMSNorm
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = PackedAttention
        attention.q_layernorm = RMSNorm
        attention.k_layernorm = RMSNorm
    if model.hybrid is not None:
        first = get_transformer_layer_offset(made)
        spec.layer_specs = hybrid_layers(dict(enumerate(spec.layer_specs, first)), model)
    return spec
