"""Policies that follow a script."""

import numpy as np

from components.gateway import Prompt, user
from components.gateway.template import END
from components.harness import SCRIPTED_VERSION, ScriptedPolicy
from components.records import Sampling
from components.tito import TokenHistory
from tests.harness.parts import SPECIALS, trajectory

TEMPLATE = trajectory(None).template


async def draw(policy, observation, limit):
    prompt = Prompt(TokenHistory([1, 2, 3]), (user(observation),))
    return await policy.answer(prompt, sampling=Sampling(), max_new_tokens=limit)


async def test_a_script_sees_turn_and_observation_and_measures_no_logprob():
    seen = []

    async def script(turn, observation):
        seen.append((turn, observation))
        return "hé"

    scripted = ScriptedPolicy(TEMPLATE, script)
    answer = await draw(scripted, "$ ", 9)
    assert seen == [(0, "$ ")]
    assert answer.output_ids.tolist() == [*"hé".encode(), SPECIALS[END]]
    assert np.isnan(answer.logprobs).all()
    assert (answer.finish_reason, answer.weight_version) == ("stop", SCRIPTED_VERSION)


async def test_a_script_that_says_too_much_is_cut_like_a_sampler():
    answer = await draw(ScriptedPolicy(TEMPLATE, lambda turn, observation: "abcdef"), "", 4)
    assert (len(answer.output_ids), answer.finish_reason) == (4, "length")
