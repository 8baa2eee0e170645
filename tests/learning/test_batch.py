"""From trials to training streams: graded, stitched, admitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import components.learning.batch as batch
from components.config import ModelConfig, RewardConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.learning.admission import admit
from components.records import AssertionOutcome, TaskRef, Trial, Turn, VerifierReport
from components.tito import stitch

TASK = TaskRef(
    "pool", "task", "d", "files", assertion_ids=("a", "b", "c"), fail_to_pass=("a", "b"), pass_to_pass=("c",)
)
CONFIG = RewardConfig()
MODEL = ModelConfig(num_hidden_layers=1, num_experts=8, num_experts_per_tok=2)


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


def _assemble(*trials: Trial) -> batch.Assembled:
    streams = [admit(one, stitch(one.turns, Letters(), trial_id=one.trial_id), Letters(), MODEL) for one in trials]
    return batch.assemble(trials, streams, CONFIG, num_experts=8)


def test_each_trial_becomes_its_stream_with_its_own_reward() -> None:
    made = _assemble(_trial("x", "abc"), _trial("y", "ac"))
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


def test_a_trial_without_a_verdict_earns_no_reward_not_zero() -> None:
    fault = InfraFault(FaultCause.SANDBOX, "gone")
    with pytest.raises(ValueError, match="no reward, not zero"):
        _assemble(_trial("x", "", fault=fault))
