"""Policies."""

import numpy as np
import pytest

from components.errors import FaultCause, InfraFault
from components.harness import SCRIPTED_VERSION, Chat, SamplerPolicy, ScriptedPolicy
from components.harness.chat import END
from components.records import Sampling
from components.sampler import Generation
from components.tito import TokenHistory
from tests.harness.parts import SPECIALS, ByteTokenizer

CHAT = Chat(ByteTokenizer())


class StubSampler:
    """Answers with two ids; routing row j holds j, so that a misplaced row shows."""

    def __init__(self, **changes):
        self.changes = changes
        self.calls = []

    async def generate(self, prompt_ids, **call):
        self.calls.append((list(prompt_ids), call))
        start = call["routing_start"]
        rows = None if start is None else np.arange(start, len(prompt_ids) + 1, dtype=np.uint8).reshape(-1, 1, 1)
        fields = {
            "output_ids": np.asarray([65, SPECIALS[END]], np.int32),
            "logprobs": np.asarray([-1.0, -2.0], np.float32),
            "routing": rows,
            "routing_start": start or 0,
            "finish_reason": "stop",
            "weight_version": 4,
            "cached_tokens": 0,
        }
        return Generation(**(fields | self.changes))


def policy(sampler, capture=True):
    return SamplerPolicy(sampler, CHAT, Sampling(), session_id="t", capture=capture)


async def draw(policy, length):
    return await policy.answer(np.arange(length, dtype=np.int32), max_new_tokens=8, observation="")


async def test_routing_of_each_turn_is_whole_and_only_new_rows_are_asked_for():
    sampler = StubSampler()
    drawing = policy(sampler)
    history = TokenHistory(range(5))
    first = history.append_turn(await draw(drawing, 5))
    history.append_context([1, 2, 3, 4])
    second = history.append_turn(await draw(drawing, len(history)))
    assert [call["routing_start"] for _, call in sampler.calls] == [0, 6]
    assert first.routing.ravel().tolist() == list(range(6))
    assert second.routing.ravel().tolist() == list(range(12))
    assert sampler.calls[0][1]["stop_token_ids"] == (SPECIALS[END],)


async def test_without_capture_no_routing_is_asked_for():
    sampler = StubSampler()
    assert (await draw(policy(sampler, capture=False), 5)).routing is None
    assert sampler.calls[0][1]["routing_start"] is None


async def test_missing_routing_is_a_capture_fault():
    with pytest.raises(InfraFault) as raised:
        await draw(policy(StubSampler(routing=None)), 5)
    assert raised.value.cause is FaultCause.CAPTURE_MISSING


async def test_an_aborted_answer_is_a_sampler_fault():
    with pytest.raises(InfraFault) as raised:
        await draw(policy(StubSampler(finish_reason="abort")), 5)
    assert raised.value.cause is FaultCause.SAMPLER


async def test_weights_that_change_within_a_trial_are_a_sampler_fault():
    sampler = StubSampler()
    drawing = policy(sampler)
    await draw(drawing, 5)
    sampler.changes = {"weight_version": 5}
    with pytest.raises(InfraFault, match="weights 4 became 5 within a trial"):
        await draw(drawing, 9)


async def test_a_script_sees_turn_and_observation_and_measures_no_logprob():
    seen = []

    async def script(turn, observation):
        seen.append((turn, observation))
        return "hé"

    scripted = ScriptedPolicy(CHAT, script)
    answer = await scripted.answer(np.zeros(3, np.int32), max_new_tokens=9, observation="$ ")
    assert seen == [(0, "$ ")]
    assert answer.output_ids.tolist() == [*"hé".encode(), SPECIALS[END]]
    assert np.isnan(answer.logprobs).all()
    assert (answer.finish_reason, answer.weight_version) == ("stop", SCRIPTED_VERSION)


async def test_a_script_that_says_too_much_is_cut_like_a_sampler():
    scripted = ScriptedPolicy(CHAT, lambda turn, observation: "abcdef")
    answer = await scripted.answer(np.zeros(3, np.int32), max_new_tokens=4, observation="")
    assert (len(answer.output_ids), answer.finish_reason) == (4, "length")
