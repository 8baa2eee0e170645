"""What a step made of its trials: a row for each, and what the trainer said of every sampled token.

Beside the batch in the store, since neither can be had from it: `rl/trials/<step>` are the rows, small enough to choose
from what a person should read without opening a batch; `rl/judged/<step>` the figures of tokens. A step that is taken
again writes the same again. What the step did not learn from (a stale chunk, a damaged trial) has no figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from components.errors import RecordError, StoreError
from components.records import AssertionOutcome, Float32, Reward, Sample, Trial

FIELDS = ("behaviour", "current", "advantages", "values")


@dataclass(frozen=True, slots=True, eq=False)
class TokenFigures:
    """Of the A sampled tokens of one stream, in their order.

    Attributes:
        behaviour: float32[A], the trainer's log-prob under the weights that drew the token.
        current: float32[A], its log-prob under the weights that the update began with.
        advantages: float32[A], what the token was worth to the update.
        values: float32[A], the critic's from before its update; None without a critic.
    """

    behaviour: Float32
    current: Float32
    advantages: Float32
    values: Float32 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial of a step's batch. A field that is new has a default: a running campaign has rows without it.

    Attributes:
        assertions: how many the verifier reported as passed, of whatever kind; None without a report of assertions.
        gap: mean |log-prob gap| between sampler and trainer at equal weights, nats a token; None where not measured.
        advantage: mean advantage of its tokens; None where not measured.
        tampering: how many signs of work against the verifier; None where nobody looked.
    """

    trial_id: str
    task_id: str
    category: str
    difficulty: str
    reward: float
    resolved: bool
    passed: int
    total: int
    assertions: int | None = None
    stop: str | None = None
    turns: int
    sampled: int
    gap: float | None = None
    advantage: float | None = None
    tampering: int | None

    @classmethod
    def from_json(cls, told: Any) -> TrialRow:
        """A stored row of any version: what it may lack is as by default, what is new to us is passed over.

        Raises:
            RecordError: it is no row, or lacks what every version has.
        """
        if not isinstance(told, Mapping):
            raise RecordError(f"a trial's row is a {type(told).__name__}, not an object")
        if missing := [each.name for each in fields(cls) if each.default is MISSING and each.name not in told]:
            raise RecordError(f"a trial's row lacks {', '.join(missing)}")
        return cls(**{each.name: told[each.name] for each in fields(cls) if each.name in told})


def trial_rows(
    trials: Sequence[Trial], rewards: Sequence[Reward], samples: Sequence[Sample], figures: Sequence[TokenFigures]
) -> list[dict[str, Any]]:
    """The rows of a batch, as JSON. `figures` has one entry a sample, and `samples` only those that have."""
    gaps: dict[str, list[Float32]] = {}
    gains: dict[str, list[Float32]] = {}
    for sample, said in zip(samples, figures, strict=True):
        gaps.setdefault(sample.trial_id, []).append(np.abs(said.behaviour - sample.logprobs[sample.loss_mask]))
        gains.setdefault(sample.trial_id, []).append(said.advantages)
    return [
        asdict(
            TrialRow(
                trial_id=trial.trial_id,
                task_id=trial.task.task_id,
                category=trial.task.category,
                difficulty=trial.task.difficulty,
                reward=reward.value,
                resolved=reward.outcome,
                passed=reward.passed,
                total=reward.total,
                assertions=_passed(trial),
                stop=trial.stop,
                turns=len(trial.turns),
                sampled=sum(len(turn.completion_ids) for turn in trial.turns),
                gap=_mean(gaps.get(trial.trial_id, [])),
                advantage=_mean(gains.get(trial.trial_id, [])),
                tampering=len(trial.facts["tampering"]) if "tampering" in trial.facts else None,
            )
        )
        for trial, reward in zip(trials, rewards, strict=True)
    ]


def dump_figures(samples: Sequence[Sample], figures: Sequence[TokenFigures]) -> bytes:
    """`figures`, one entry a sample, as safetensors."""
    arrays = {}
    for sample, said in zip(samples, figures, strict=True):
        for name in FIELDS:
            if (array := getattr(said, name)) is not None:
                arrays[f"{sample.trial_id}/{sample.chunk}/{name}"] = np.ascontiguousarray(array, np.float32)
    return save(arrays)


def load_figures(data: bytes, trial_id: str) -> Mapping[int, TokenFigures]:
    """The figures of one trial, by chunk.

    Raises:
        StoreError: `data` is no such file.
    """
    try:
        arrays = load(data)
        chunks = {int(name.split("/")[1]) for name in arrays if name.startswith(f"{trial_id}/")}
        return {chunk: _figures(arrays, f"{trial_id}/{chunk}") for chunk in sorted(chunks)}
    except (SafetensorError, KeyError, ValueError, IndexError) as error:
        raise StoreError(f"the trainer's figures of trial {trial_id} cannot be read: {error}") from error


def _figures(arrays: Mapping[str, Float32], key: str) -> TokenFigures:
    behaviour, current, advantages = (arrays[f"{key}/{name}"] for name in FIELDS[:3])
    return TokenFigures(behaviour, current, advantages, arrays.get(f"{key}/values"))


def _passed(trial: Trial) -> int | None:
    if trial.report is None or not trial.report.assertions:
        return None
    return sum(outcome is AssertionOutcome.PASSED for outcome in trial.report.assertions.values())


def _mean(parts: Sequence[Float32]) -> float | None:
    """Over all their tokens; None where there is none."""
    tokens = np.concatenate(parts) if parts else np.empty(0, np.float32)
    return float(tokens.mean(dtype=np.float64)) if len(tokens) else None
