"""What one GPU of a trainer holds during a leg of RL: Eq 21 with the numbers of the trainer that there is.

    b = (8 + 4m) p                        float32 weights and gradients, and m moments, of the actor
        + (8 + 4m) p                      the same of the critic, where there is one
        + 4 (1 + v) p                     v snapshots of the actor, and its own weights while one stands in for them
        + αT/κτ + [last stage] 8|V|T/κτ   activations; logits and their gradients
        + b_0 <= M                        with p = P_e/ρη + P_d/ρτ

Eq 21 (`components.planner.capacity`) is of the paper's trainer: bf16 weights, one model at a time, moments cut over all
devices. Ours computes in float32 and holds actor, critic and snapshots beside each other. P_d of a stage has the
embedding on the first and the output layer on the last; the moments are cut over data-parallel ranks only with
`trainer.distributed_optimizer`. There is no reference model.

Invariants: the terms add up to the total; the verdict is that of the stage that needs most. What tensor parallelism
does not cut (norms, routers, the critic's head) is small and left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.config import CampaignConfig, LayoutConfig, ModelConfig, TrainerConfig
from components.planner.capacity import GIB, OVERHEAD_GIB
from components.planner.host import Held, trained_bytes
from components.planner.shape import BF16, FP32, ModelShape


@dataclass(frozen=True)
class DeviceReport:
    """Bytes that one device holds, by kind, and what it has.

    Attributes:
        layout: of the trainer.
        stage: the pipeline stage that needs most: "first", "last", or "only".
        terms: bytes by kind.
        tokens: of a micro-batch.
        memory_gib: of the device.
    """

    layout: LayoutConfig
    stage: str
    terms: dict[str, float]
    tokens: int
    memory_gib: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.terms.values())

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.total <= self.memory_gib * GIB

    @property
    def decides(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: self.terms[name])

    def explain(self) -> str:
        """The arithmetic in a line."""
        layout, budget = self.layout, f"{self.memory_gib:g} GiB of a device (trainer.device_memory_gib)"
        where = f"τ{layout.tp} ρ{layout.pp} κ{layout.cp} δ{layout.dp} η{layout.ep} at {self.tokens:,} tokens, float32"
        terms = " + ".join(f"{name} {value / GIB:.1f}" for name, value in self.terms.items() if value)
        verdict = "within" if self.fits else "over"
        return (
            f"{where}: {terms} = {self.total / GIB:.1f} GiB on the {self.stage} stage, {verdict} the {budget}; "
            f"{self.decides} decides"
        )


def device(config: CampaignConfig, memory_gib: float) -> DeviceReport:
    """The arithmetic of one device of the configured layout, on the stage that needs most."""
    trainer = config.trainer
    stages = ("only",) if trainer.layout.pp == 1 else ("first", "last")
    reports = [
        DeviceReport(trainer.layout, stage, _terms(config, stage), trainer.micro_batch_tokens, memory_gib)
        for stage in stages
    ]
    return max(reports, key=lambda report: report.total)


def held_by_device(model: ModelConfig, trainer: TrainerConfig, stage: str) -> tuple[Held, Held]:
    """Parameters of the actor, and of a critic, on one device of a stage."""
    shape, layout = ModelShape.of(model), trainer.layout
    embedding = model.vocab_size * model.hidden_size
    matrices = 1 if model.tie_word_embeddings else 2
    layers = (shape.dense_parameters - matrices * embedding) // layout.pp
    actor = {"only": matrices, "first": 1, "last": 1}[stage]
    critic = {"only": 1, "first": 1, "last": 0}[stage]
    experts = shape.expert_parameters // (layout.pp * layout.ep)
    cut, experts_cut = 1, 1
    if trainer.distributed_optimizer:
        cut, experts_cut = layout.cp * layout.dp, max(1, layout.world // layout.pp // layout.ep)

    def of(ends: int) -> Held:
        dense = (layers + ends * embedding) // layout.tp
        return Held(experts + dense, experts // experts_cut + dense // cut)

    return of(actor), of(critic)


def _terms(config: CampaignConfig, stage: str) -> dict[str, float]:
    model, trainer, ppo = config.model, config.trainer, config.ppo
    shape, layout = ModelShape.of(model), trainer.layout
    actor, critic = held_by_device(model, trainer, stage)
    local = trainer.micro_batch_tokens / layout.cp / layout.tp
    terms = {"actor": trained_bytes(actor, ppo.actor.kind)}
    if ppo.critic is not None:
        terms["critic"] = trained_bytes(critic, ppo.critic.optimizer.kind)
    terms["snapshots"] = float(FP32 * (1 + config.rollout.versions) * actor.weights)
    # One network works at a time.
    terms["activations"] = _activations(shape, trainer, stage) * local
    terms["logits"] = 0.0 if stage == "first" else 2.0 * FP32 * shape.vocab * local
    terms["overhead"] = OVERHEAD_GIB * GIB
    return terms


def _activations(shape: ModelShape, trainer: TrainerConfig, stage: str) -> float:
    """Bytes a token, in float32: what the layers of a stage keep for every micro-batch in flight, and one at work."""
    wide = FP32 // BF16
    layers = shape.layers // trainer.layout.pp * (trainer.layout.pp if stage == "first" else 1)
    if trainer.recompute == "none":
        return float(layers * shape.work_bytes_per_token * wide)
    return float((layers * shape.kept_bytes_per_token + shape.work_bytes_per_token) * wide)
