"""The inference servers, and how they get new weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from components.config.section import Section


class SGLangConfig(Section):
    """An SGLang that is started for the job, on the job's machine."""

    python: str = "python3"
    """Interpreter of the environment that SGLang is installed in. It is never Longshell's own: their torch differ."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `sglang.launch_server`, e.g. [--tp, "8"]. They override what Longshell passes."""
    environment: dict[str, str] = {}
    """Further environment variables of the server."""


class SamplerConfig(Section):
    """The inference servers."""

    engine: Literal["embedded", "sglang"] = "embedded"
    """`embedded` starts our own server; `sglang` starts an SGLang (`sglang`) or talks to the one in `urls`."""
    urls: tuple[str, ...] = ()
    """An SGLang that runs already. It must see the checkpoint folders under the same paths."""
    sglang: SGLangConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    router_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the embedded engine. A bfloat16 router reproduces the routing error that replay removes."""
    slots: int = Field(64, ge=1)
    """Sequences at once; the embedded server keeps their cache. Fewer than the trials alive costs re-reading of
    histories."""
    context_tokens: int = Field(1_024, ge=16)
    """Tokens of one sequence, prompt and answer; at least `harness.max_context_tokens`."""
    prefill_tokens: int = Field(512, ge=1)
    """Prompt tokens computed in one step; bounds how long decoding sequences wait."""
    threads: int = Field(1, ge=1)
    """Torch threads of the embedded server."""
    start_timeout_s: float = Field(60.0, gt=0)
    request_timeout_s: float = Field(600.0, gt=0)
    """Deadline of one generation. Must exceed the longest pause."""
    max_restarts: int = Field(3, ge=0)
    """Times a job starts its sampler again after it was found dead at a publication."""

    @model_validator(mode="after")
    def _one_server(self) -> SamplerConfig:
        if self.engine == "embedded" and (self.urls or self.sglang is not None):
            raise ValueError("urls and sglang are refused with engine: embedded")
        if self.engine == "sglang" and bool(self.urls) == (self.sglang is not None):
            raise ValueError("engine: sglang needs either urls or sglang")
        if len(self.urls) > 1:
            raise ValueError("one url only: trials are not spread over several samplers yet")
        if self.engine == "sglang" and self.router_dtype != "float32":
            raise ValueError("router_dtype is the embedded engine's; SGLang's routers follow dtype")
        return self


class PublishConfig(Section):
    """Weights from the trainer to the samplers, at the barrier of every step."""

    method: Literal["disk", "collective"] = "disk"
    """`disk` writes a folder that both sides see; `collective` broadcasts from the trainer's rank 0."""
    timeout_s: float = Field(300.0, gt=0)
    """Deadline of a whole publication. A sampler that has not confirmed by then is given up."""
    bucket_mb: float = Field(64.0, gt=0)
    """collective: bytes in flight at once, and held by the trainer beyond its own weights; at least one tensor."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """collective: nccl needs GPUs on both sides."""
    host: str = "127.0.0.1"
    """collective: address of the trainer that the samplers reach."""
