"""Sampling: the `Sampler` protocol, the client of SGLang's native API, and the embedded server that speaks it too."""

from __future__ import annotations

from components.sampler.client import SGLangClient
from components.sampler.geometry import ModelGeometry
from components.sampler.launch import SamplerServer, launch_sampler
from components.sampler.protocol import Generation, GroupAddress, ModelInfo, Sampler, TensorSpec

__all__ = [
    "Generation",
    "GroupAddress",
    "ModelGeometry",
    "ModelInfo",
    "SGLangClient",
    "Sampler",
    "SamplerServer",
    "TensorSpec",
    "launch_sampler",
]
