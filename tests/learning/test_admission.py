"""What may be trained on of a trial: each thing that can be wrong with its record has its cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from components.config import ModelConfig
from components.errors import ChecksumError, DriftError, FaultCause, RecordError
from components.learning.admission import admit, damaged
from components.records import Sample
from components.routing import checksum
from components.tito import stitch
from tests.harness.parts import ByteTokenizer
from tests.rollout.parts import graded, tasks

MODEL = ModelConfig(num_hidden_layers=2, num_experts=8, num_experts_per_tok=2)
TRIAL = graded("x", tasks(1)[0].ref, routing=True)


def streams() -> list[Sample]:
    return stitch(TRIAL.turns, ByteTokenizer(), trial_id="x")


def another_token(sample: Sample) -> Sample:
    tokens = sample.tokens.copy()
    tokens[np.flatnonzero(sample.loss_mask)[1]] += 1
    return replace(sample, tokens=tokens)


def another_logprob(sample: Sample) -> Sample:
    logprobs = sample.logprobs.copy()
    logprobs[np.flatnonzero(sample.loss_mask)[0]] -= 0.125
    return replace(sample, logprobs=logprobs)


def context_with_loss(sample: Sample) -> Sample:
    mask = sample.loss_mask.copy()
    mask[np.flatnonzero(~mask)[-1]] = True
    return replace(sample, loss_mask=mask)


def other_weights(sample: Sample) -> Sample:
    return replace(sample, weight_version=sample.weight_version + 1)


def rolled_rows(sample: Sample) -> Sample:
    return replace(sample, routing=np.roll(sample.routing, 1, 0))


def rerouted(sample: Sample, routing: np.ndarray) -> Sample:
    """As a capture would be that was wrong from the beginning."""
    return replace(sample, routing=routing, routing_checksum=checksum(routing))


def an_expert_twice(sample: Sample) -> Sample:
    routing = sample.routing.copy()
    routing[3, 1] = 5
    return rerouted(sample, routing)


def an_expert_too_many(sample: Sample) -> Sample:
    return rerouted(sample, np.where(sample.routing == 4, 8, sample.routing).astype(np.uint8))


def a_layer_short(sample: Sample) -> Sample:
    return rerouted(sample, sample.routing[:, :1])


def no_routing(sample: Sample) -> Sample:
    return replace(sample, routing=None, routing_checksum=None)


DRIFT = (another_token, another_logprob, context_with_loss, other_weights)
ROUTING = {rolled_rows: ChecksumError} | dict.fromkeys(
    (an_expert_twice, an_expert_too_many, a_layer_short, no_routing), RecordError
)


def test_what_was_sampled_is_admitted_as_it_is() -> None:
    made = admit(TRIAL, streams(), ByteTokenizer(), MODEL)
    assert [sample.tokens.tolist() for sample in made.samples] == [sample.tokens.tolist() for sample in streams()]
    assert made.drift.clean
    assert made.drift.loss_tokens == 6
    assert damaged(made.samples, MODEL) == {}


@pytest.mark.parametrize("corrupt", DRIFT, ids=lambda corrupt: corrupt.__name__)
def test_a_stream_that_trains_what_was_not_sampled_is_refused_as_drift(corrupt: Callable[[Sample], Sample]) -> None:
    (sample,) = streams()
    with pytest.raises(DriftError, match="trial x: what is trained is not what was sampled"):
        admit(TRIAL, [corrupt(sample)], ByteTokenizer(), MODEL)


@pytest.mark.parametrize("corrupt", ROUTING, ids=lambda corrupt: corrupt.__name__)
def test_routing_that_is_not_what_a_router_of_this_model_chose_is_refused(corrupt: Callable[[Sample], Sample]) -> None:
    (sample,) = streams()
    with pytest.raises(RecordError, match="sample x/0") as refused:
        admit(TRIAL, [corrupt(sample)], ByteTokenizer(), MODEL)
    assert type(refused.value) is ROUTING[corrupt]
    cause = FaultCause.CHECKSUM if ROUTING[corrupt] is ChecksumError else FaultCause.RECORD
    sound = replace(sample, trial_id="y")
    assert {name: fault.cause for name, fault in damaged([sound, corrupt(sample)], MODEL).items()} == {"x": cause}


def test_a_trial_of_which_a_turn_is_not_trained_on_is_refused() -> None:
    with pytest.raises(DriftError, match="missing_turns=1"):
        admit(TRIAL, stitch(TRIAL.turns[:1], ByteTokenizer()), ByteTokenizer(), MODEL)
