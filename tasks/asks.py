"""What each flow task asks of its job, and under which identity: pure, so that it can be foreseen.

Invariant: nothing else decides a job's stage, index and inputs; two equal asks are one job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.cluster import JobSpec
from components.config import CampaignConfig
from tasks.campaign import campaign_name
from tasks.results import Checkpoint, Pool, Samples, Score, WarmCritic

NIGHTLY_INDEX = 1_000
"""Evaluations outside the campaign's own sequence are numbered from here."""


@dataclass(frozen=True)
class Ask:
    """One job.

    Attributes:
        stage: the job's module, and the name of the MLflow run.
        index: tells jobs of one stage apart.
        inputs: store keys and numbers that the job needs.
        steps: how many steps of its stage are the job's, from `inputs["first_step"]` on; None when all are.
    """

    stage: str
    index: int
    inputs: Mapping[str, Any]
    steps: int | None = None

    def spec(self, config: CampaignConfig) -> JobSpec:
        """The job's identity; the whole configuration is part of it."""
        return JobSpec(self.stage, campaign_name(config), self.index, config.model_dump(mode="json"), dict(self.inputs))


def base(pool: Pool) -> Ask:
    """The base model, trained from demonstrations."""
    return Ask("base", 0, {"pool": pool.key})


def rejection(pool: Pool, before: Checkpoint) -> Ask:
    """What SFT learns from, where that are trials that passed."""
    return Ask("rejection", 0, {"pool": pool.key, "checkpoint": before.key})


def sft(pool: Pool, before: Checkpoint, samples: Samples | None = None) -> Ask:
    """The base model after supervised fine-tuning, on demonstrations where there are no samples."""
    given = {} if samples is None else {"samples": samples.key}
    return Ask("sft", 0, {"pool": pool.key, "checkpoint": before.key, **given})


def warmup(config: CampaignConfig, pool: Pool, before: Checkpoint) -> Ask:
    """A critic trained beside an actor that starts from `before`."""
    assert config.ppo.warmup is not None
    inputs = {"pool": pool.key, "checkpoint": before.key, "state": None, "critic": None, "first_step": 0}
    return Ask("warmup", 0, inputs, config.ppo.warmup.steps)


def leg(config: CampaignConfig, pool: Pool, before: Checkpoint, number: int, critic: WarmCritic | None) -> Ask:
    """Leg `number` (from 1). The first begins with the weights of `critic`, or with a cold one."""
    steps = config.rl.leg_steps
    inputs = {
        "pool": pool.key,
        "checkpoint": before.key,
        "state": before.state,
        "critic": critic.key if critic is not None and before.state is None else None,
        "first_step": (number - 1) * steps,
    }
    return Ask("rl", number, inputs, steps)


def evaluation(pool: Pool, checkpoint: Checkpoint, trials: int, index: int, label: str | None = None) -> Ask:
    """A checkpoint on held-out tasks; `label` names the evaluation when it is not the checkpoint's own."""
    inputs = {"pool": pool.key, "trials": trials, "label": label or checkpoint.label}
    return Ask("evaluate", index, {**inputs, "checkpoint": checkpoint.key})


def suite(checkpoint: Checkpoint, name: str, index: int, label: str) -> Ask:
    """A checkpoint on a suite of `evaluation.suites`."""
    return Ask("evaluate", index, {"suite": name, "label": label, "checkpoint": checkpoint.key})


def diagnosis(config: CampaignConfig, scores: Sequence[Score], leg: int | None) -> Ask:
    """The campaign's records and evaluations, up to the end of `leg` or all of them."""
    steps = config.rl.leg_steps
    inputs = {
        "results": {score.label: {**score.result, "step": score.step} for score in scores},
        "through": None if leg is None else leg * steps,
        "before": ((leg or config.rl.legs) - 1) * steps,
    }
    return Ask("diagnose", leg or 0, inputs)
