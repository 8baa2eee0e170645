"""The command line of a sampler: our own, or an SGLang. Pure: what is impossible was refused with the configuration.

Invariant: the client can rely on what is passed to SGLang (ids in and out, experts captured, a neutral sampling
default, one positive prefill chunk), since `SGLangConfig.arguments` cannot take any of it back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from components.config import SamplerConfig


@dataclass(frozen=True, slots=True)
class Place:
    """What differs from replica to replica and from start to start."""

    host: str
    port: int
    nccl_port: int
    """SGLang's. By itself it takes an ephemeral one and binds it a minute later, when it may be gone."""
    seed: int


def server_command(
    config: SamplerConfig, model_path: Path, *, weight_version: int, place: Place, routing: bool
) -> list[str]:
    """Of whichever server the configuration starts. Arguments as of `sglang_command`."""
    command = embedded_command if config.sglang is None else sglang_command
    return command(config, model_path, weight_version=weight_version, place=place, routing=routing)


def embedded_command(
    config: SamplerConfig, model_path: Path, *, weight_version: int, place: Place, routing: bool
) -> list[str]:
    """Of our own server. Arguments as of `sglang_command`."""
    values: dict[str, object] = {
        "--model": model_path,
        "--host": place.host,
        "--port": place.port,
        "--slots": config.slots,
        "--context": config.context_tokens,
        "--prefill-tokens": config.prefill_tokens,
        "--dtype": config.dtype,
        "--router-dtype": config.router_dtype,
        "--threads": config.threads,
        "--seed": place.seed,
        "--weight-version": weight_version,
    }
    capture = ["--enable-return-routed-experts"] if routing else []
    return [sys.executable, "-m", "components.sampler.server", *flags(values), *capture]


def sglang_command(
    config: SamplerConfig, model_path: Path, *, weight_version: int, place: Place, routing: bool
) -> list[str]:
    """From the environment's interpreter on.

    Args:
        routing: capture the experts of every token.
    """
    settings = config.sglang
    assert settings is not None, "an SGLang was configured"
    values: dict[str, object] = {
        "--model-path": model_path,
        "--host": place.host,
        "--port": place.port,
        "--nccl-port": place.nccl_port,
        "--dtype": config.dtype,
        "--context-length": config.context_tokens,
        "--max-running-requests": config.slots,
        # The whole prompt in one piece crashes capture in 0.5.12: a positive chunk is the rule.
        "--chunked-prefill-size": config.prefill_tokens,
        "--random-seed": place.seed,
        "--weight-version": weight_version,
        # What a request leaves out is SGLang's neutral value, not the checkpoint's generation_config.json.
        "--sampling-defaults": "openai",
        "--tp-size": settings.tp,
    }
    if settings.dp > 1:
        values["--dp-size"] = settings.dp
    if settings.expert_parallel != "none":
        values["--ep-size"] = settings.tp  # SGLang knows one expert-parallel size besides 1
    if settings.expert_parallel == "deepep":
        values |= {"--moe-a2a-backend": "deepep", "--deepep-mode": settings.deepep_mode}
    if settings.attention_backend is not None:
        values["--attention-backend"] = settings.attention_backend
    if settings.memory_fraction is not None:
        values["--mem-fraction-static"] = settings.memory_fraction
    switches = {
        # Ids are all that is exchanged, and a checkpoint of ours need not have a tokenizer that SGLang reads.
        "--skip-tokenizer-init": True,
        "--enable-return-routed-experts": routing,
        "--enable-dp-attention": settings.dp > 1,
        "--enable-deterministic-inference": settings.deterministic,
        "--enable-memory-saver": settings.memory_saver,
        "--enable-fp32-lm-head": settings.fp32_lm_head,
    }
    set_ = [name for name, wanted in switches.items() if wanted]
    return [settings.python, "-m", "sglang.launch_server", *flags(values), *set_, *settings.arguments]


def flags(values: Mapping[str, object]) -> list[str]:
    """Names and values one after another."""
    return [str(part) for pair in values.items() for part in pair]
