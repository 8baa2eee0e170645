"""How rewards become updates: the objective, its critic, and the baselines (paper 4.5, 5).

Every key here is read whenever it can be given: what belongs to the critic lies under `critic`, which an algorithm
without one refuses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from components.config.section import Problems, Section
from components.config.training import OptimizerConfig

SEQUENCE_CLIP = 0.05
"""A ratio that is a mean over a stream moves by thousandths: a clip as wide as this would never act."""

Correction = Literal["tis", "icepop", "sequence_k3", "sequence_ratio"]
TOKEN_CORRECTIONS: tuple[Correction, ...] = ("tis", "icepop")


class ClippedValueConfig(Section):
    """Squared error with the paper's clip (Eq 17). The head gives one number."""

    kind: Literal["clipped"] = "clipped"
    clip: float = Field(0.2, gt=0)
    """ε_v: how far a value may move from the one before the update."""


class HlGaussConfig(Section):
    """Cross entropy against the return as a Gaussian over bins (Farebrother et al. 2024); the head gives logits."""

    kind: Literal["hl_gauss"]
    bins: int = Field(51, ge=2)
    low: float = -0.25
    high: float = 1.75
    """The bins span [low, high]; returns beyond are taken at the border and counted. 1.75: 35 assertions at S = 20."""
    spread: float = Field(0.75, gt=0)
    """Deviation of the Gaussian, in widths of a bin."""

    @model_validator(mode="after")
    def _ordered(self) -> HlGaussConfig:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must lie below high {self.high:g}")
        return self


def _as_choice(schema: dict[str, Any]) -> None:
    """Prefect's form knows `anyOf`; a discriminated union is `oneOf`."""
    schema["anyOf"] = schema.pop("oneOf")
    del schema["discriminator"]


class CriticWarmupConfig(Section):
    """The stage before RL: actor and critic learn on a pool of its own, then only the critic's weights are kept."""

    steps: int = Field(ge=1)
    tasks: int = Field(ge=1)
    """Size of the warm-up pool, of which no task is trained on or held out. An epoch is tasks / rollout.batch steps."""


class CriticConfig(Section):
    """A second model of the actor's size that predicts the return of every sampled token."""

    optimizer: OptimizerConfig
    loss: Annotated[ClippedValueConfig | HlGaussConfig, Field(discriminator="kind", json_schema_extra=_as_choice)] = (
        ClippedValueConfig()
    )
    loss_scale: float = Field(1.0, gt=0)
    """Factor of the value loss before clipping by max_grad_norm."""
    gamma: float = Field(1.0, gt=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    """λ of the returns that the critic is trained on, and of the advantages unless `length_adaptive` is set."""
    length_adaptive: float | None = Field(None, gt=0)
    """α: the advantages of a stream of l trainable tokens use λ = 1 - 1/(α l) (VAPO: 0.05). Off in the paper."""
    only_steps: int = Field(2, ge=0)
    """Steps at the beginning of RL in which the critic alone moves."""
    warmup: CriticWarmupConfig | None = None
    """Absent: RL starts from a critic with the actor's weights and a head of zeros."""


class CorrectionsConfig(Section):
    """Weights against the gap between sampler and trainer. The paper uses none, for replay leaves little to correct.

    What each would do is measured in every step, whether it is applied or not.
    """

    apply: tuple[Correction, ...] = ()
    tis_cap: float = Field(2.0, ge=1)
    """`tis`: a token weighs min(ρ, cap), ρ = π(trainer) / π(sampler) at equal weights."""
    icepop_low: float = Field(0.5, gt=0, le=1)
    icepop_high: float = Field(5.0, ge=1)
    """`icepop`: a token weighs ρ inside [low, high], nothing outside."""
    sequence_k3: float = Field(0.01, gt=0)
    """`sequence_k3`: a stream whose mean of ρ - log ρ - 1 exceeds this weighs nothing."""
    sequence_low: float = Field(0.98, gt=0, le=1)
    sequence_high: float = Field(1.02, ge=1)
    """`sequence_ratio`: a stream whose geometric mean of ρ lies outside [low, high] weighs nothing."""

    @model_validator(mode="after")
    def _distinct(self) -> CorrectionsConfig:
        if len(set(self.apply)) != len(self.apply):
            raise ValueError("apply names a correction twice")
        if set(TOKEN_CORRECTIONS) <= set(self.apply):
            raise ValueError("apply takes one of tis and icepop: both weigh tokens by the same ratio")
        return self


class PpoConfig(Section):
    """One update of the policy from one batch."""

    algorithm: Literal["ppo", "grpo", "gspo"] = "ppo"
    """`ppo`, the paper: a critic judges every token. `grpo`: a trial is compared with the others of its task, without a
    critic. `gspo`: the same comparison, with one ratio and one clip a stream."""
    group_size: int = Field(1, ge=1)
    """Trials of one task in a step. The paper's is 1; the baselines need at least 2."""
    actor: OptimizerConfig
    clip: float = Field(0.2, gt=0, lt=1)
    """ε of the policy's ratio (Eq 18). `gspo` needs a far smaller one, about 4e-4."""
    critic: CriticConfig | None = None
    """Required by `ppo`, refused by the baselines."""
    whiten_advantages: bool = False
    """Off in the paper. The miniature sets it: 64 trajectories a step, against 512."""
    corrections: CorrectionsConfig = CorrectionsConfig()

    @property
    def warmup(self) -> CriticWarmupConfig | None:
        """The critic's warm-up stage; None without one."""
        return self.critic.warmup if self.critic is not None else None

    @model_validator(mode="after")
    def _algorithm(self) -> PpoConfig:
        problems = []
        if self.algorithm == "ppo" and self.critic is None:
            problems.append("critic is required with algorithm ppo")
        if self.algorithm != "ppo":
            if self.critic is not None:
                problems.append(f"critic is refused with algorithm {self.algorithm}, which has none: set it to null")
            if self.group_size < 2:
                problems.append(f"algorithm {self.algorithm} compares trials of one task: group_size must be 2 or more")
            if self.whiten_advantages:
                problems.append(f"whiten_advantages is refused with algorithm {self.algorithm}: groups are normalised")
        if self.algorithm == "gspo":
            if self.clip > SEQUENCE_CLIP:
                problems.append(f"clip {self.clip:g} never acts on a stream's mean ratio: gspo needs about 4e-4")
            if taken := [name for name in self.corrections.apply if name in TOKEN_CORRECTIONS]:
                problems.append(f"corrections.apply: {taken[0]} weighs tokens, but gspo has one ratio a stream")
        if problems:
            raise Problems(problems)
        return self
