"""Faults that recorders and harnesses of other projects had, by project and number."""

from __future__ import annotations

import asyncio

import pytest

from components.tito import audit, stitch
from tests.gateway.parts import StubSampler, body, open_gateway
from tests.gateway.test_http import CHAT, TOOLS, post, until
from tests.harness.parts import ByteTokenizer


def streams(gateway):
    turns = gateway.trial("t").trajectory.turns
    samples = stitch(turns, ByteTokenizer())
    return samples, audit(turns, samples, ByteTokenizer())


async def test_an_answer_cut_by_length_is_not_lost_while_its_text_stays_in_the_history():
    # Harbor's Terminus-2, NVIDIA-NeMo/Evaluator #1125: calls that ended by length were never recorded.
    async with open_gateway(StubSampler("much too long", "ok")) as (gateway, client):
        _, reply = await post(client, body("go", max_tokens=4))
        message = reply["choices"][0]["message"]
        assert (message["content"], reply["choices"][0]["finish_reason"]) == ("much", "length")
        await post(client, body("go", message, "it was cut"))
        (sample,), report = streams(gateway)
    assert int(sample.loss_mask.sum()) == 4 + 3
    assert report.clean


async def test_a_full_context_is_told_in_words_that_harnesses_know_before_anything_is_drawn():
    # NVIDIA-NeMo/Evaluator #1101: the phrase was not recognised, and the agent crashed instead of summarising.
    sampler = StubSampler()
    async with open_gateway(sampler) as (_, client):
        status, reply = await post(client, body("x" * 1000))
    assert status == 400
    assert "maximum context length" in reply["error"]["message"]
    assert reply["error"]["code"] == "context_length_exceeded"
    assert sampler.calls == []


async def test_a_summary_without_a_budget_is_refused_and_never_drawn_with_no_tokens():
    # marin #7833, verifiers #2458: summaries were asked for with the room that was left, down to max_tokens = 0.
    sampler = StubSampler()
    async with open_gateway(sampler, context=60) as (gateway, client):
        assert (await post(client, body("go", max_tokens=0)))[0] == 400
        size = 60
        while (await post(client, body("x" * size)))[0] == 400:
            size -= 1
        assert [call["max_new_tokens"] for _, call in sampler.calls] == [1]
        assert len(gateway.trial("t").trajectory.turns) == 1


async def test_the_limits_of_the_server_can_be_asked_for_instead_of_guessed():
    # marin #8212: the agent used 32 thousand tokens of a server that had a million.
    async with open_gateway(StubSampler(), context=123) as (_, client), client.get("/t/t/v1/models") as response:
        assert (await response.json())["data"][0]["max_model_len"] == 123


async def test_tool_calls_that_come_back_without_content_or_in_other_json_do_not_re_encode_the_history():
    # verl #3960, rllm #272: tool calls were cleared or rendered anew, and consecutive results joined.
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
    async with open_gateway(StubSampler(call, call, "done"), context=2000) as (gateway, client):
        said = ["go"]
        for _ in range(2):
            _, reply = await post(client, body(*said, tools=TOOLS))
            message = reply["choices"][0]["message"]
            message["tool_calls"][0]["function"]["arguments"] = '{"at" : "x"}'
            said += [message | {"content": ""}, *({"role": "tool", "content": word} for word in ("a", "b"))]
        await post(client, body(*said, tools=TOOLS))
        (sample,), report = streams(gateway)
    assert report.reencoded_context == 0
    assert sample.boundaries["strict"] == 2


async def test_a_trial_that_summarises_keeps_all_its_tokens():
    # Harbor: after a summary the entries mixed both histories, so SkyRL forbids summaries when training.
    async with open_gateway(StubSampler("one", "two", "the story", "three")) as (gateway, client):
        said = ["go"]
        for _ in range(2):
            _, reply = await post(client, body(*said))
            said += [reply["choices"][0]["message"], "saw"]
        _, reply = await post(client, body(*said[:-1], "sum up"))
        await post(client, body("go", f"So far: {reply['choices'][0]['message']['content']}"))
        samples, report = streams(gateway)
    assert [sample.boundaries for sample in samples] == [
        {"strict": 2, "normalized": 0, "retokenized": 0, "split": 0},
        {"strict": 0, "normalized": 0, "retokenized": 0, "split": 1},
    ]
    assert (report.clean, report.reencoded_context) == (True, 0)


async def hang_up(sampler, client):
    """Asks, and is gone while the answer is drawn, which the gateway has seen."""
    sampler.held.clear()
    asking = asyncio.create_task(post(client, body("go")))
    await until(lambda: sampler.calls)
    asking.cancel()
    await until(lambda: sampler.cancelled)


@pytest.mark.parametrize("end", ["aborted", "hung up"])
async def test_half_an_answer_is_not_trained(end):
    # SGLang 0.5.12 answers an aborted request with 200, what was drawn so far, and sometimes no routing rows.
    sampler = StubSampler("half", finish_reason="abort" if end == "aborted" else "stop")
    async with open_gateway(sampler) as (gateway, client):
        if end == "aborted":
            assert (await post(client, body("go")))[0] == 503
        else:
            await hang_up(sampler, client)
        assert streams(gateway)[0] == []


async def test_a_retry_of_an_answer_that_did_not_arrive_does_not_train_both():
    # litellm and openai retry by themselves: the server may have drawn an answer that nobody is waiting for any more.
    sampler = StubSampler("lost", "kept")
    async with open_gateway(sampler) as (gateway, client):
        await hang_up(sampler, client)
        sampler.held.set()
        assert (await post(client, body("go"), CHAT))[0] == 200
        (sample,), _ = streams(gateway)
    assert ByteTokenizer().decode(sample.tokens[sample.loss_mask]).startswith("kept")
