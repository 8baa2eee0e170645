"""From trials to training streams: graded, stitched, audited."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import components.learning.batch as batch
from components.config import RewardConfig
from components.errors import DriftError, FaultCause, InfraFault, StopReason
from components.records import AssertionOutcome, Sample, TaskRef, Trial, Turn, VerifierReport

TASK = TaskRef(
    "pool", "task", "d", "files", assertion_ids=("a", "b", "c"), fail_to_pass=("a", "b"), pass_to_pass=("c",)
)
CONFIG = RewardConfig()


class Letters:
    """One token a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return self.encode(text), [(index, index + 1) for index in range(len(text))]


def _turns(answers: Sequence[str]) -> list[Turn]:
    history, turns = "task>", []
    for answer in answers:
        n = len(history) + len(answer) - 1
        routing = np.tile(np.array([[[0, 1]]], dtype=np.uint8), (n, 1, 1))
        prompt, drawn = (np.array([ord(c) for c in text], dtype=np.int32) for text in (history, answer))
        turns.append(Turn(prompt, drawn, np.full(len(drawn), -0.5, dtype=np.float32), routing, 3, "stop"))
        history += answer + "\n$ "
    return turns


def _trial(name: str, passed: str, *, fault: InfraFault | None = None, answers: Sequence[str] = ("ls", "pwd")) -> Trial:
    outcomes = {
        key: AssertionOutcome.PASSED if key in passed else AssertionOutcome.FAILED for key in TASK.assertion_ids
    }
    report = None if fault else VerifierReport(outcomes, set(passed) == {"a", "b", "c"}, "test")
    return Trial(name, TASK, _turns(answers), StopReason.COMPLETED, report, fault)


def test_each_trial_becomes_its_stream_with_its_own_reward() -> None:
    made = batch.assemble([_trial("x", "abc"), _trial("y", "ac")], Letters(), CONFIG, num_experts=8)
    assert [sample.trial_id for sample in made.samples] == ["x", "y"]
    assert made.sample_rewards == (2 / 20, 1 / 20)
    assert [reward.outcome for reward in made.trial_rewards] == [True, False]
    assert [int(sample.loss_mask.sum()) for sample in made.samples] == [5, 5]
    assert made.metrics["tito/drift"] == 0
    assert made.metrics["tito/drift_retokenized"] == made.metrics["tito/drift_placeholder"] == 0
    assert made.metrics["r3/placeholder_rows"] == 0
    assert made.metrics["tito/reencoded_context"] == 0
    assert made.metrics["tito/strict"] == 2
    assert made.metrics["r3/bytes_per_token"] == 2


def test_a_stream_that_trains_what_was_not_sampled_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def forge(turns: Sequence[Turn], tokenizer: Letters, *, trial_id: str) -> list[Sample]:
        (sample,) = stitch(turns, tokenizer, trial_id=trial_id)
        tokens = sample.tokens.copy()
        tokens[np.flatnonzero(sample.loss_mask)[1]] += 1
        return [Sample(tokens, sample.loss_mask, sample.logprobs, sample.routing, trial_id, weight_version=3)]

    stitch = batch.stitch
    monkeypatch.setattr(batch, "stitch", forge)
    with pytest.raises(DriftError, match="trial x"):
        batch.assemble([_trial("x", "abc")], Letters(), CONFIG, num_experts=8)


def test_a_trial_without_a_verdict_earns_no_reward_not_zero() -> None:
    fault = InfraFault(FaultCause.SANDBOX, "gone")
    with pytest.raises(ValueError, match="no reward, not zero"):
        batch.assemble([_trial("x", "", fault=fault)], Letters(), CONFIG, num_experts=8)
