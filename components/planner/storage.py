"""What a campaign leaves in the artifact store: an upper bound, for the disk or the bucket that holds it.

Invariant: every term is what is kept at the same time at the most, every trajectory being as long as its wall. Text,
records, reports and the pool's own files are small beside these and are not counted.

Checkpoints are float32 and never deleted. Of the trainer's states a stage keeps the last, the one that its leg began
with, and the best leg's (`checkpoints`). Batches, what the trainer said of their tokens, and the passes of rejection
sampling are never deleted: what was learned from can be read again.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.config import CampaignConfig, LayoutConfig, OptimizerConfig
from components.planner.capacity import GIB
from components.planner.host import MOMENTS, held
from components.planner.shape import FP32, ModelShape

TOKEN_BYTES = 4 + 4 + 1
"""Of a token: its id, its log-probability, whether it is trained on. A turn shares ids with the one before."""
FIGURES = 4
"""Of a sampled token, by the trainer, in float32: see `TokenFigures`."""
CORPUS_BYTES = 4 + 1
"""Of a token that SFT learns from: its id, whether it is trained on."""


@dataclass(frozen=True)
class StorageReport:
    """Bytes in the store, by kind."""

    terms: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.terms.values())

    def explain(self) -> str:
        """The arithmetic in a line."""
        told = " + ".join(f"{name} {value / GIB:,.1f}" for name, value in self.terms.items() if value)
        return f"at most {told} = {self.total / GIB:,.1f} GiB"


def storage(config: CampaignConfig) -> StorageReport:
    """The arithmetic of one campaign."""
    model, ppo, rl = config.model, config.ppo, config.rl
    alone = config.trainer.model_copy(update={"layout": LayoutConfig(), "distributed_optimizer": False})
    actor, critic = (float(each.weights) for each in held(model, alone))

    def trained(weights: float, optimizer: OptimizerConfig) -> float:
        return FP32 * weights * (1 + MOMENTS[optimizer.kind])

    state = trained(actor, ppo.actor) + FP32 * actor * config.rollout.versions
    if ppo.critic is not None:
        state += trained(critic, ppo.critic.optimizer)
    kept = config.checkpoints.keep_last
    supervised = [stage for stage in (config.base, config.sft) if stage is not None]
    states = sum(kept * trained(actor, stage.optimizer) for stage in supervised)
    states += (kept + 1 + config.checkpoints.keep_best) * state
    warmup = 0 if ppo.warmup is None else ppo.warmup.steps
    if warmup:
        states += kept * state
    wall = config.harness.max_context_tokens
    steps = rl.legs * rl.leg_steps + warmup
    figures = FIGURES if ppo.critic is not None else FIGURES - 1  # The values are a critic's.
    evaluation = config.evaluation
    asked = 2 * evaluation.trials + (rl.legs - 1) * evaluation.leg_trials + evaluation.trials
    longest = evaluation.conditions.context_tokens or wall
    return StorageReport(
        {
            "checkpoints": FP32 * actor * (2 + rl.legs) + (FP32 * critic if warmup else 0.0),
            "states": states,
            "batches": float(
                steps * config.rollout.batch * wall * (TOKEN_BYTES + ModelShape.of(model).routing_bytes_per_token())
            ),
            "judged": float(steps * config.rollout.batch * wall * figures * FP32),
            "rejection": float(_rejection(config)),
            "evaluations": float(asked * evaluation.conditions.attempts * longest * TOKEN_BYTES),
        }
    )


def _rejection(config: CampaignConfig) -> int:
    """Passes of trials on the training tasks, whose routing is not captured, and the corpus selected of them."""
    wanted, wall = config.sft.rejection, config.harness.max_context_tokens
    if wanted is None:
        return 0
    tasks = wanted.tasks or config.pool.train_tasks
    kept = min(wanted.attempts, wanted.per_task or wanted.attempts)
    longest = min(wall, wanted.max_tokens or wall)
    return tasks * (wanted.attempts * wall * TOKEN_BYTES + kept * longest * CORPUS_BYTES)
