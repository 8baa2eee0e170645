"""What a campaign needs of the machine that it runs on, when that is one machine with processors only.

Invariant: every term is what the campaign holds at the same time at the least, so a configuration that is refused could
not have run. What sandboxes use is their commands' and is not counted; their limits bound it.

The trainer computes in float32: weights, gradients and two moments are sixteen bytes a parameter, against Eq 21's
eighteen for bf16 weights. All of its ranks are on this machine, so what several of them hold counts as often: experts
have tp * cp * dp / ep copies, everything else cp * dp (what tensor parallelism does not cut is small, and left out).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from components.config import CampaignConfig, LayoutConfig, ModelConfig, TrainerConfig
from components.planner.capacity import GIB
from components.planner.shape import BF16, FP32, ModelShape

MOMENTS = {"adam": 2, "muon": 1}
PROCESS = 0.35 * GIB
"""Resident memory of a process with torch and Megatron, or torch and the sampler, before it has a model (measured)."""
SERVICES = 1.2 * GIB
"""Prefect, Ray and MLflow, idle (measured)."""
FLEETS = 2
"""One for the rollouts, and one for the evaluation that runs beside them."""
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container's memory limit is written, in control groups v2 and v1."""


@dataclass(frozen=True)
class HostReport:
    """Bytes that a campaign needs, by kind, and what the machine has.

    Attributes:
        terms: bytes by kind.
        tokens: of the longest trajectory, for which activations and logits are counted.
        memory: bytes of the machine.
    """

    terms: dict[str, float]
    tokens: int
    memory: int

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.terms.values())

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.total <= self.memory

    @property
    def decides(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: self.terms[name])

    def explain(self) -> str:
        """The arithmetic in a line."""
        terms = " + ".join(f"{name} {value / GIB:.2f}" for name, value in self.terms.items())
        verdict = "within" if self.fits else "over"
        return (
            f"at {self.tokens:,} tokens a trajectory: {terms} = {self.total / GIB:.2f} GiB, {verdict} the "
            f"{self.memory / GIB:.1f} GiB of this machine; {self.decides} decides"
        )


def host(config: CampaignConfig, memory: int | None = None) -> HostReport:
    """The arithmetic of one machine, for the stage that needs most: a leg of RL beside an evaluation.

    Args:
        config: the campaign.
        memory: bytes of the machine; None for the one that we are on.
    """
    actor = ModelShape.of(config.model)
    tokens = config.harness.max_context_tokens
    # Ranks have processes of their own; the job that drives them imports what they import.
    ranks = config.trainer.layout.world
    actor_held, critic_held = held(config.model, config.trainer)
    trained = {"actor": trained_bytes(actor_held, config.ppo.actor.kind)}
    if config.ppo.critic is not None:
        trained["critic"] = trained_bytes(critic_held, config.ppo.critic.optimizer.kind)
    terms = {
        "services": SERVICES,
        "trainer": PROCESS * (ranks + (ranks > 1)),
        **trained,
        # The snapshots of the generating versions, and the current weights while one stands in for them.
        "snapshots": (1.0 + config.rollout.versions) * FP32 * actor_held.weights,
        "commit": _commit(config),
        "activations": float(_activations(actor, config.trainer) * tokens),
        # Logits and their gradient; in RL each sampled token has a row.
        "logits": 2.0 * FP32 * actor.vocab * min(tokens, config.harness.max_turn_tokens),
    }
    if config.sampler.engine == "embedded":
        width = 1 if config.sampler.dtype == "float32" else 0.5
        sequences = config.sampler.slots * config.sampler.context_tokens
        samplers = FLEETS * config.sampler.replicas
        terms["samplers"] = samplers * (PROCESS + width * FP32 * actor.parameters)
        terms["sampler caches"] = samplers * width * 2.0 * actor.kv_bytes_per_token * sequences
    return HostReport(terms, tokens, machine_memory() if memory is None else memory)


@dataclass(frozen=True)
class Held:
    """Parameters of one model, counted over all ranks.

    Attributes:
        weights: how many have a weight and a gradient.
        moments: how many have moments.
    """

    weights: int
    moments: int


def held(model: ModelConfig, trainer: TrainerConfig) -> tuple[Held, Held]:
    """Of the actor, and of a critic: the same without an output layer, its head is small."""
    shape, layout = ModelShape.of(model), trainer.layout
    embedding = model.vocab_size * model.hidden_size
    tied = model.tie_word_embeddings
    # Stages that both need a tied embedding hold one each; a critic never ties.
    actor = shape.dense_parameters + (embedding if tied and layout.pp > 1 else 0)
    critic = shape.dense_parameters - (0 if tied else embedding)
    experts = shape.expert_parameters * (layout.world // layout.pp // layout.ep)

    def over_ranks(dense: int) -> Held:
        weights = experts + dense * layout.cp * layout.dp
        return Held(weights, shape.expert_parameters + dense if trainer.distributed_optimizer else weights)

    return over_ranks(actor), over_ranks(critic)


def trained_bytes(held: Held, kind: str) -> float:
    """Float32 weights, gradients and moments of a model that this much is held of."""
    return float(FP32 * (2 * held.weights + MOMENTS[kind] * held.moments))


def _commit(config: CampaignConfig) -> float:
    """The state that is written while the next step computes: weights, moments and snapshots, each once."""
    alone = config.trainer.model_copy(update={"layout": LayoutConfig(), "distributed_optimizer": False})
    actor, critic = held(config.model, alone)
    saved = actor.weights * (1 + config.rollout.versions + MOMENTS[config.ppo.actor.kind])
    if config.ppo.critic is not None:
        saved += critic.weights * (1 + MOMENTS[config.ppo.critic.optimizer.kind])
    return float(FP32 * saved)


def _activations(shape: ModelShape, trainer: TrainerConfig) -> int:
    """Bytes a token over all layers: what each works on; recomputed, what each is given and what one works on."""
    if trainer.recompute == "none":
        return shape.layers * shape.work_bytes_per_token
    return shape.layers * shape.kept_bytes_per_token * FP32 // BF16 + shape.work_bytes_per_token


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the container that this process is in."""
    memory = psutil.virtual_memory().total
    for path in LIMITS:
        if path.is_file() and (text := path.read_text().strip()).isdecimal():
            memory = min(memory, int(text))
    return int(memory)
