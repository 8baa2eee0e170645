"""From graded trials to what the learner takes: samples and one reward each.

Invariant: every trained token is the token that was sampled. Only streams that the auditor has seen get here
(`components.learning.admission`), and what it found is told of every batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from components.config import RewardConfig
from components.learning.admission import Admitted
from components.records import Reward, Sample, Trial
from components.reward import dense_reward
from components.routing import bytes_per_token

BOUNDARIES = ("strict", "normalized", "retokenized", "split")


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """The training streams of a batch of trials.

    Attributes:
        samples: chunks of all trials, in the trials' order.
        sample_rewards: one a sample: the reward of its trial.
        trial_rewards: one a trial.
        metrics: `tito/...` and `r3/...` of design section 10.
    """

    samples: tuple[Sample, ...]
    sample_rewards: tuple[float, ...]
    trial_rewards: tuple[Reward, ...]
    metrics: dict[str, float]


def assemble(
    trials: Sequence[Trial], streams: Sequence[Admitted], config: RewardConfig, *, num_experts: int
) -> Assembled:
    """Grades every trial. Every trial must carry a report. `streams` has one entry a trial."""
    samples: list[Sample] = []
    sample_rewards: list[float] = []
    rewards: list[Reward] = []
    boundaries: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for trial, admitted in zip(trials, streams, strict=True):
        reward, report = reward_of(trial, config), admitted.drift
        found.update(report.positions, reencoded=report.reencoded_tokens, filled=report.placeholder_rows)
        for chunk in admitted.samples:
            boundaries.update(chunk.boundaries)
        rewards.append(reward)
        samples.extend(admitted.samples)
        sample_rewards.extend([reward.value] * len(admitted.samples))
    metrics = {f"tito/{case}": float(boundaries[case]) for case in BOUNDARIES}
    if trained := found["aligned"] + found["retokenized"] + found["placeholder"]:
        metrics["tito/drift_retokenized"] = found["retokenized"] / trained
        metrics["tito/drift_placeholder"] = found["placeholder"] / trained
        metrics["tito/drift"] = (found["retokenized"] + found["placeholder"]) / trained
        metrics["tito/reencoded_context"] = found["reencoded"] / trained
    if samples and samples[0].routing is not None:
        _, layers, experts = samples[0].routing.shape
        metrics["r3/placeholder_rows"] = found["filled"] / sum(len(sample.tokens) - 1 for sample in samples)
        metrics["r3/bytes_per_token"] = float(bytes_per_token(layers, experts, num_experts))
    return Assembled(tuple(samples), tuple(sample_rewards), tuple(rewards), metrics)


def reward_of(trial: Trial, config: RewardConfig) -> Reward:
    """The reward of a graded trial (paper Eq 20).

    Raises:
        ValueError: the trial ended in an infrastructure fault; it has no reward.
    """
    if trial.report is None:
        raise ValueError(f"trial {trial.trial_id} has no verdict ({trial.fault}); it earns no reward, not zero")
    return dense_reward(
        trial.report,
        bool(trial.report.outcome),
        scale=config.scale,
        credit=config.credit,
        fail_to_pass=trial.task.fail_to_pass or None,
    )
