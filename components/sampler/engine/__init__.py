"""The embedded sampling engine: Qwen3-MoE on a CPU, with prefix reuse, continuous batching and captured routing."""

from __future__ import annotations

from pathlib import Path

import torch

from components.errors import CheckpointError
from components.sampler.engine.architecture import Architecture
from components.sampler.engine.engine import Engine, never_ran
from components.sampler.engine.request import Answer, Request
from components.sampler.engine.weights import Weights, build_weights, load_weights

__all__ = [
    "Answer",
    "Architecture",
    "Engine",
    "Request",
    "Weights",
    "build_weights",
    "load_weights",
    "never_ran",
    "open_engine",
]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def open_engine(
    folder: Path,
    *,
    slots: int,
    context: int,
    dtype: str = "float32",
    router_dtype: str = "float32",
    prefill_tokens: int = 512,
    routing: bool = True,
    seed: int = 0,
    version: str = "0",
) -> Engine:
    """Loads a Hugging Face folder into a new engine.

    Raises:
        CheckpointError: the folder cannot be used, or its model has fewer positions than `context`.
    """
    arch = Architecture.read(folder)
    if context > arch.max_positions:
        raise CheckpointError(f"{folder}: {context} context tokens asked, the model has {arch.max_positions} positions")
    weights = load_weights(folder, arch, DTYPES[dtype], DTYPES[router_dtype])
    return Engine(
        arch,
        weights,
        slots=slots,
        context=context,
        prefill_tokens=prefill_tokens,
        routing=routing,
        seed=seed,
        version=version,
    )
