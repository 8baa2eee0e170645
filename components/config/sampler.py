"""The inference servers, and how they get new weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from components.config.section import Problems, Section, without_credentials

OWNED = {
    "--model-path": "the stage's checkpoint",
    "--host": "",
    "--port": "",
    "--nccl-port": "",
    "--random-seed": "seed",
    "--weight-version": "",
    "--skip-tokenizer-init": "",
    "--sampling-defaults": "",
    "--enable-return-routed-experts": "",
    "--dtype": "sampler.dtype",
    "--context-length": "sampler.context_tokens",
    "--max-running-requests": "sampler.slots",
    "--chunked-prefill-size": "sampler.prefill_tokens",
    "--tensor-parallel-size": "sampler.sglang.tp",
    "--tp-size": "sampler.sglang.tp",
    "--data-parallel-size": "sampler.sglang.dp",
    "--dp-size": "sampler.sglang.dp",
    "--enable-dp-attention": "sampler.sglang.dp",
    "--expert-parallel-size": "sampler.sglang.expert_parallel",
    "--ep-size": "sampler.sglang.expert_parallel",
    "--moe-a2a-backend": "sampler.sglang.expert_parallel",
    "--deepep-mode": "sampler.sglang.deepep_mode",
    "--enable-deterministic-inference": "sampler.sglang.deterministic",
    "--attention-backend": "sampler.sglang.attention_backend",
    "--mem-fraction-static": "sampler.sglang.memory_fraction",
    "--enable-memory-saver": "sampler.sglang.memory_saver",
    "--enable-fp32-lm-head": "sampler.sglang.fp32_lm_head",
}
"""What Longshell passes to an SGLang, and the key that sets it, where there is one."""
HARMFUL = {
    "--enable-hierarchical-cache": "it returns stale routed experts",
    "--enable-eplb": "it relabels experts",
    "--speculative-algorithm": "the capture of routed experts does not count its tokens",
    "--disaggregation-mode": "prefill elsewhere returns no routed experts",
    "--pipeline-parallel-size": "weights are not published to pipeline ranks",
    "--pp-size": "weights are not published to pipeline ranks",
    "--nnodes": "a replica is of one machine: set sampler.replicas",
}
DETERMINISTIC_ATTENTION = ("flashinfer", "fa3", "triton")


class SGLangConfig(Section):
    """An SGLang that is started for the job. What `arguments` adds is checked against what it must not touch."""

    python: str = "python3"
    """Interpreter of the environment that SGLang is installed in. It is never Longshell's own: their torch differ."""
    tp: int = Field(1, ge=1)
    """GPUs of one replica, over which every layer is cut."""
    dp: int = Field(1, ge=1)
    """Parts of those GPUs that attend to requests of their own (DP attention); a trajectory stays with one. For whole
    models side by side there is `sampler.replicas`."""
    expert_parallel: Literal["none", "plain", "deepep"] = "none"
    """`none` cuts every expert over the GPUs; the others give each GPU experts of its own."""
    deepep_mode: Literal["auto", "normal", "low_latency"] = "auto"
    deterministic: bool = False
    """Kernels whose results do not depend on the batch, and draws that follow the seed; slower."""
    attention_backend: str | None = None
    """None leaves the choice to SGLang."""
    memory_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of a GPU's memory for weights and cache; None leaves it to SGLang."""
    memory_saver: bool = False
    """Memory can then be released and taken back by whoever shares the GPUs. Longshell does neither yet."""
    fp32_lm_head: bool = False
    """The last layer in float32, as in the trainer."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `sglang.launch_server`."""
    environment: dict[str, str] = {}
    """Further environment variables of the server."""

    @model_validator(mode="after")
    def _possible(self) -> SGLangConfig:
        problems = []
        if self.tp % self.dp:
            problems.append(f"dp {self.dp} does not divide tp {self.tp}")
        if self.dp > 1 and self.expert_parallel != "deepep":
            problems.append(
                "dp needs expert_parallel: deepep; else routed experts of its ranks are lost (sglang#23999)"
            )
        if self.expert_parallel != "none" and self.tp == 1:
            problems.append(f"expert_parallel: {self.expert_parallel} needs tp > 1")
        if self.deepep_mode != "auto" and self.expert_parallel != "deepep":
            problems.append("deepep_mode is of expert_parallel: deepep")
        if self.deterministic and self.attention_backend not in (None, *DETERMINISTIC_ATTENTION):
            problems.append(
                f"deterministic needs attention_backend {', '.join(DETERMINISTIC_ATTENTION)}, not "
                f"{self.attention_backend}"
            )
        problems += [problem for argument in self.arguments if (problem := _refusal(argument))]
        if problems:
            raise Problems(problems)
        return self


def _refusal(argument: str) -> str | None:
    """Why an argument is not passed on. SGLang takes an unambiguous beginning for the whole name: it counts too."""
    name = argument.partition("=")[0]
    if not name.startswith("--"):
        return None
    for flag, why in HARMFUL.items():
        if flag.startswith(name):
            return f"arguments: {name} is refused: {why}"
    for flag, key in OWNED.items():
        if flag.startswith(name):
            return f"arguments: {name} is set by " + (key or "Longshell")
    return None


class HealthConfig(Section):
    """When a sampler that does not answer is given up. One whose process has ended is, at once."""

    grace_s: float = Field(600.0, ge=0)
    """After it was ready for the first time, silence means nothing: kernels are still being compiled."""
    period_s: float = Field(30.0, gt=0)
    """Between two questions."""
    deadline_s: float = Field(120.0, gt=0)
    """Silence of that length ends it."""


class SamplerConfig(Section):
    """The inference servers."""

    engine: Literal["embedded", "sglang"] = "embedded"
    """`embedded` starts our own server; `sglang` starts an SGLang (`sglang`) or talks to the one in `urls`."""
    urls: tuple[str, ...] = ()
    """SGLangs that run already, each a replica. They must see the checkpoint folders under the same paths."""
    sglang: SGLangConfig | None = None
    replicas: int = Field(1, ge=1)
    """Servers that the job starts, all of the same weights. What follows is of each."""
    placement: Literal["job", "ray"] = "job"
    """`job`: on the job's machine; `ray`: wherever Ray has the GPUs of a replica (`sglang.tp`)."""
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
    start_timeout_s: float = Field(300.0, gt=0)
    request_timeout_s: float = Field(600.0, gt=0)
    """Deadline of one generation, and how long one waits for a replica. Must exceed the longest pause."""
    health: HealthConfig = HealthConfig()
    max_restarts: int = Field(3, ge=0)
    """Times that a job starts a replica again."""
    min_healthy: int = Field(1, ge=1)
    """Fewer replicas than this that serve, or can be started again, end the job."""

    @property
    def members(self) -> int:
        """How many replicas there are, whoever started them."""
        return len(self.urls) or self.replicas

    @field_validator("urls")
    @classmethod
    def _plain(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(without_credentials, urls))

    @model_validator(mode="after")
    def _one_kind(self) -> SamplerConfig:
        if self.engine == "embedded" and (self.urls or self.sglang is not None):
            raise ValueError("urls and sglang are refused with engine: embedded")
        if self.engine == "sglang" and bool(self.urls) == (self.sglang is not None):
            raise ValueError("engine: sglang needs either urls or sglang")
        if self.urls and (self.replicas > 1 or self.placement == "ray"):
            raise ValueError("replicas and placement are of servers that the job starts; urls are the replicas")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("a url is given twice")
        if self.min_healthy > self.members:
            raise ValueError(f"min_healthy {self.min_healthy} is more than there are replicas ({self.members})")
        if self.engine == "sglang" and self.router_dtype != "float32":
            raise ValueError("router_dtype is the embedded engine's; SGLang's routers follow dtype")
        return self


class PublishConfig(Section):
    """Weights from the trainer to the samplers, at the barrier of every step."""

    method: Literal["disk", "collective"] = "disk"
    """`disk` writes a folder that both sides see; `collective` broadcasts from the trainer's rank 0."""
    folder: str | None = None
    """Where weights are written for the samplers. It must be visible under this path on every machine that has one;
    None is the job's own scratch, for samplers of its machine."""
    timeout_s: float = Field(300.0, gt=0)
    """Deadline of a publication, from the first pause to the last resume: a sampler that has not confirmed by then is
    given up. With `disk` the folder is written before that, and may take as long as it takes."""
    bucket_mb: float = Field(64.0, gt=0)
    """collective: bytes in flight at once, at least one tensor. The process that publishes holds so much, and the next
    tensor, beyond its own weights; what ranks gather for it is in docs/sampler.md."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """collective: nccl needs GPUs on both sides."""
    host: str = "127.0.0.1"
    """collective: address of the trainer that the samplers reach."""
