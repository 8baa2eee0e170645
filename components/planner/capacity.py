"""Bytes a device of a trainer layout (paper Eq 21).

    b = (6/ρ)(P_e/η + P_d) + 12 P_e/G + 12 P_d/(ρδ) + αT/κ + [last stage] 4|V|T/κ + b_0 <= M

Six bytes a parameter are bf16 weights and float32 gradients; twelve are float32 master weights and two moments. Experts
are sharded η ways within a stage, their optimizer over every device, so that term depends on G only. The paper leaves α
to measurement; ours follows from the shape, for full recomputation: the inputs that are kept of the stage's layers, for
as many micro-batches as are in flight, and the one layer at work, both sharded τ ways by sequence parallelism.

Invariant: a report's terms add up to its total; the verdict is that of the stage that needs most.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.config import LayoutConfig
from components.errors import ConfigError
from components.planner.shape import ModelShape

GIB = 1 << 30
WEIGHT_AND_GRADIENT, OPTIMIZER, LOGIT = 6, 12, 4
"""Bytes a parameter, a parameter, an element (Eq 21)."""

OVERHEAD_GIB = 6.0
"""b_0: context, communication buffers and fragmentation of one device. The paper has the symbol only; this is ours."""


@dataclass(frozen=True)
class Plan:
    """A layout and what each device has.

    Attributes:
        layout: τ, ρ, κ, δ (`tp`, `pp`, `cp`, `dp`), whose product is G, the devices of the trainer; and η (`ep`), the
            devices of a stage over which its experts are spread.
        memory_gib: M, of one device.
        overhead_gib: b_0.
        activation_bytes_per_token: α when it was measured; None for our estimate.

    Raises:
        ConfigError: a device without memory.
    """

    layout: LayoutConfig
    memory_gib: float = 80.0
    overhead_gib: float = OVERHEAD_GIB
    activation_bytes_per_token: float | None = None

    def __post_init__(self) -> None:
        if self.memory_gib <= 0:
            raise ConfigError([f"memory_gib {self.memory_gib:g} is not positive"], "plan")

    def __str__(self) -> str:
        layout = self.layout
        return f"τ{layout.tp} ρ{layout.pp} κ{layout.cp} δ{layout.dp} η{layout.ep}"


@dataclass(frozen=True)
class StageBytes:
    """What one device of a pipeline stage holds, in bytes by kind."""

    name: str
    expert_weights: float
    dense_weights: float
    expert_optimizer: float
    dense_optimizer: float
    activations: float
    logits: float
    overhead: float

    @property
    def terms(self) -> dict[str, float]:
        """The terms of Eq 21, in its order; `*_weights` include the gradients."""
        return {name: value for name, value in vars(self).items() if name != "name"}

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.terms.values())


@dataclass(frozen=True)
class CapacityReport:
    """Whether a plan fits, and why.

    Attributes:
        plan: the plan.
        tokens: T, of the longest sequence.
        stages: the first and the last stage; one when there is but one.
        max_tokens: the longest sequence that fits; 0 when none does.
    """

    plan: Plan
    tokens: int
    stages: tuple[StageBytes, ...]
    max_tokens: int

    @property
    def worst(self) -> StageBytes:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def total(self) -> float:
        """Bytes a device of the worst stage."""
        return self.worst.total

    @property
    def budget(self) -> float:
        """M in bytes."""
        return self.plan.memory_gib * GIB

    @property
    def fits(self) -> bool:
        """Whether the worst stage is within the budget."""
        return self.total <= self.budget

    @property
    def decides(self) -> str:
        """The largest term of the worst stage."""
        terms = self.worst.terms
        return max(terms, key=lambda name: terms[name])

    def explain(self) -> str:
        """The arithmetic in a line."""
        terms = " + ".join(f"{name} {value / GIB:.1f}" for name, value in self.worst.terms.items() if value)
        verdict = "within" if self.fits else "over"
        room = f"{verdict} the {self.plan.memory_gib:g} GiB of a device"
        longest = f"the longest sequence that fits has {self.max_tokens:,} tokens" if self.max_tokens else "none fits"
        return (
            f"{self.plan} at {self.tokens:,} tokens: {terms} = {self.total / GIB:.1f} GiB on the {self.worst.name} "
            f"stage, {room}; {self.decides} decides; {longest}"
        )


def capacity(plan: Plan, model: ModelShape, tokens: int) -> CapacityReport:
    """Eq 21 for the longest sequence of `tokens` tokens.

    Raises:
        ConfigError: the layout cannot cut this model: stages or expert groups of unequal size.
    """
    problems = []
    if model.layers % plan.layout.pp:
        problems.append(f"pp {plan.layout.pp} does not divide {model.layers} layers")
    if model.experts % plan.layout.ep:
        problems.append(f"ep {plan.layout.ep} does not divide {model.experts} experts")
    if tokens < 1:
        problems.append(f"{tokens} tokens")
    if problems:
        raise ConfigError(problems, f"plan {plan}")
    names = ("only",) if plan.layout.pp == 1 else ("first", "last")
    stages = tuple(_stage(plan, model, tokens, name) for name in names)
    longest = min(_longest(plan, stage, tokens) for stage in stages)
    return CapacityReport(plan, tokens, stages, longest)


def _stage(plan: Plan, model: ModelShape, tokens: int, name: str) -> StageBytes:
    layout = plan.layout
    local = tokens / layout.cp
    in_flight = layout.pp if name == "first" else 1
    activation = plan.activation_bytes_per_token
    if activation is None:
        kept = model.kept_bytes_per_token * (model.layers // layout.pp) * in_flight
        activation = (kept + model.work_bytes_per_token) / layout.tp
    return StageBytes(
        name=name,
        expert_weights=WEIGHT_AND_GRADIENT * model.expert_parameters / (layout.pp * layout.ep),
        dense_weights=WEIGHT_AND_GRADIENT * model.dense_parameters / layout.pp,
        expert_optimizer=OPTIMIZER * model.expert_parameters / layout.world,
        dense_optimizer=OPTIMIZER * model.dense_parameters / (layout.pp * layout.dp),
        activations=activation * local,
        logits=0.0 if name == "first" else LOGIT * model.vocab * local,
        overhead=plan.overhead_gib * GIB,
    )


def _longest(plan: Plan, stage: StageBytes, tokens: int) -> int:
    """Both terms that grow do so in proportion to the tokens."""
    growing = (stage.activations + stage.logits) / tokens
    return max(0, int((plan.memory_gib * GIB - (stage.total - growing * tokens)) // growing))
