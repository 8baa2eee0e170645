"""From graded trials to what the learner takes: samples, one reward each, and the proof that no token drifted.

Invariant: every trained token is the token that was sampled. The auditor runs on every sample of every batch; a loss
position that is anything but aligned raises, and nothing of the batch is trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from components.config import RewardConfig
from components.errors import DriftError
from components.records import Reward, Sample, Trial
from components.reward import dense_reward
from components.routing import bytes_per_token
from components.tito import Tokenizer, audit

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
    trials: Sequence[Trial],
    streams: Sequence[Sequence[Sample]],
    tokenizer: Tokenizer,
    config: RewardConfig,
    *,
    num_experts: int,
) -> Assembled:
    """Audits and grades every trial. Every trial must carry a report.

    Args:
        streams: one a trial: its chunks, as `components.tito.stitch` made them.

    Raises:
        DriftError: a loss position holds an id that was not sampled there.
    """
    samples: list[Sample] = []
    sample_rewards: list[float] = []
    rewards: list[Reward] = []
    boundaries: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for trial, chunks in zip(trials, streams, strict=True):
        reward = reward_of(trial, config)
        report = audit(trial.turns, chunks, tokenizer)
        if not report.clean:
            raise DriftError(f"trial {trial.trial_id}: what is trained is not what was sampled: {report}")
        found.update(report.positions, reencoded=report.reencoded_tokens, filled=report.placeholder_rows)
        for chunk in chunks:
            boundaries.update(chunk.boundaries)
        rewards.append(reward)
        samples.extend(chunks)
        sample_rewards.extend([reward.value] * len(chunks))
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
