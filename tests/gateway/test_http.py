"""The gateway over HTTP, in front of a sampler without a model: replies, refusals, hang-ups."""

import asyncio
import base64
import json
import socket
import struct
import threading

import numpy as np
import pytest

from components.gateway import Refusal, app, chatml
from components.gateway.app import LEAST_BODY_BYTES
from components.gateway.gateway import AT_ONCE_BYTES
from components.gateway.template import END
from components.records import Sampling
from components.routing import decode
from components.tito import audit, stitch
from tests.gateway.parts import MODEL, TOOLS, StubSampler, body, open_gateway
from tests.harness.parts import SPECIALS, ByteTokenizer

CHAT = "/t/t/v1/chat/completions"


async def post(client, request, path=CHAT, **more):
    async with client.post(path, json=request, **more) as response:
        return response.status, await response.json()


async def events(client, request):
    """The data of every event of a streamed reply, parsed but for the last."""
    async with client.post(CHAT, json=request) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        lines = (await response.text()).split("\n\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"], data[-1]


async def until(condition):
    """Waits for what another task brings about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_reply_has_the_shape_of_openais_and_the_fields_of_vllms():
    async with open_gateway(StubSampler("hé")) as (gateway, client):
        asked = body("go", logprobs=True, return_token_ids=True, return_routed_experts=True)
        status, reply = await post(client, asked)
        (turn,) = gateway.trial("t").trajectory.turns
    assert status == 200
    assert (reply["object"], reply["model"], reply["system_fingerprint"]) == ("chat.completion", MODEL, "weights-4")
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hé", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert reply["prompt_token_ids"] == turn.prompt_ids.tolist()
    assert choice["token_ids"] == turn.completion_ids.tolist() == [*"hé".encode(), SPECIALS[END]]
    entries = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == turn.logprobs.tolist()
    assert [entry["token"] for entry in entries] == ["h", "\ufffd", "\ufffd", END]
    assert [entry["bytes"] for entry in entries][:2] == [[ord("h")], None]
    rows, layers, topk = choice["routed_experts"]["shape"]
    data = base64.b64decode(choice["routed_experts"]["data"])
    np.testing.assert_array_equal(decode(data, rows, layers, topk, 65_536), turn.routing)
    size = len(turn.prompt_ids)
    assert reply["usage"] == {"prompt_tokens": size, "completion_tokens": 4, "total_tokens": size + 4}


async def test_a_reply_holds_no_more_than_was_asked_for():
    async with open_gateway(StubSampler()) as (_, client):
        _, reply = await post(client, body("go"))
    assert "prompt_token_ids" not in reply
    assert reply["choices"][0].keys() == {"index", "message", "finish_reason", "logprobs"}
    assert reply["choices"][0]["logprobs"] is None


async def test_a_growing_conversation_is_one_stream_without_re_encoded_context():
    async with open_gateway(StubSampler("one", "two", "three")) as (gateway, client):
        said = ["go"]
        for number in range(3):
            _, reply = await post(client, body(*said, max_tokens=20))
            said += [reply["choices"][0]["message"], f"saw {number}"]
        async with client.get("/t/t/samples") as response:
            given = await response.json()
        turns = gateway.trial("t").trajectory.turns
    (sample,) = stitch(turns, ByteTokenizer())
    assert audit(turns, [sample], ByteTokenizer()).reencoded_context == 0
    assert given["audit"] == {"clean": True, "drift": 0, "reencoded_context": 0}
    (stream,) = given["samples"]
    assert stream["tokens"] == sample.tokens.tolist()
    assert stream["loss_mask"] == sample.loss_mask.astype(int).tolist()
    assert stream["logprobs"] == sample.logprobs.tolist()
    assert stream["boundaries"]["strict"] == 2
    assert stream["routed_experts"]["shape"] == [len(sample.tokens) - 1, 1, 1]


async def test_a_stream_carries_the_same_answer_and_ends_with_done():
    async with open_gateway(StubSampler("streamed")) as (gateway, client):
        asked = body("go", stream=True, stream_options={"include_usage": True}, return_token_ids=True, logprobs=True)
        parts, last = await events(client, asked)
        (turn,) = gateway.trial("t").trajectory.turns
    assert last == "[DONE]"
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert len({part["id"] for part in parts}) == 1
    deltas = [part["choices"][0]["delta"] for part in parts[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == "streamed"
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None, None, "stop"]
    assert parts[0]["prompt_token_ids"] == turn.prompt_ids.tolist()
    assert parts[-2]["choices"][0]["token_ids"] == turn.completion_ids.tolist()
    assert len(parts[-2]["choices"][0]["logprobs"]["content"]) == len(turn.completion_ids)
    assert (parts[-1]["choices"], parts[-1]["usage"]["completion_tokens"]) == ([], len("streamed") + 1)


async def test_a_slow_stream_is_kept_alive_and_a_fault_in_it_is_an_error_event():
    sampler = StubSampler()
    sampler.held.clear()
    async with open_gateway(sampler, keepalive_s=0.01) as (gateway, client):
        async with client.post(CHAT, json=body("go", stream=True)) as response:
            assert await response.content.readuntil(b"\n\n") == b": drawing\n\n"
            sampler.changes = {"finish_reason": "abort"}
            sampler.held.set()
            rest = (await response.text()).rpartition("data: ")[2]
        assert json.loads(rest)["error"]["code"] == "sampler"
        assert gateway.trial("t").trajectory.turns == ()


async def test_reasoning_and_tool_calls_have_fields_of_their_own():
    drawn = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"at": [1]}}\n</tool_call>'
    sampler = StubSampler(drawn, "seen", drawn)
    async with open_gateway(sampler, context=900, reasoning=True) as (gateway, client):
        _, reply = await post(client, body("go", tools=TOOLS))
        (choice,) = reply["choices"]
        message = choice["message"]
        assert (choice["finish_reason"], message["content"], message["reasoning_content"]) == ("tool_calls", None, "hm")
        (call,) = message["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"at": [1]})
        call["function"]["arguments"] = '{ "at":[ 1 ] }'
        del message["reasoning_content"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "a wall"}
        await post(client, body("go", message, result, tools=TOOLS))
        turns = gateway.trial("t").trajectory.turns
        samples = stitch(turns, ByteTokenizer())
        assert len(samples) == 1
        assert audit(turns, samples, ByteTokenizer()).reencoded_context == 0
        parts, _ = await events(client, body("again", tools=TOOLS, stream=True))
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert [list(delta) for delta in deltas] == [["role", "content"], ["reasoning_content"], ["tool_calls"], []]
    assert deltas[2]["tool_calls"][0]["index"] == 0


async def test_a_trial_is_named_by_its_route_or_by_the_session_header():
    async with open_gateway(StubSampler()) as (gateway, client):
        plain = "/v1/chat/completions"
        status, reply = await post(client, body("go"), plain)
        assert (status, reply["error"]["code"]) == (400, "trial_required")
        assert (await post(client, body("go"), plain, headers={"X-Session-ID": "t"}))[0] == 200
        assert (await post(client, body("go"), headers={"X-Session-ID": "of the agent's own"}))[0] == 200
        assert len(gateway.trial("t").trajectory.turns) == 2


async def test_trials_are_opened_once_served_while_open_and_forgotten():
    async with open_gateway(StubSampler()) as (_, client):
        assert (await post(client, {"temperature": 0.5}, "/t/new"))[0] == 201
        status, reply = await post(client, {}, "/t/new")
        assert (status, reply["error"]["code"]) == (409, "duplicate_trial")
        assert (await post(client, body("go"), "/t/new/v1/chat/completions"))[0] == 200
        async with client.delete("/t/new") as response:
            assert await response.json() == {"trial_id": "new", "turns": 1}
        for status, reply in (
            await post(client, body("go"), "/t/new/v1/chat/completions"),
            await post(client, body("go"), "/v1/chat/completions", headers={"X-Session-ID": "new"}),
        ):
            assert (status, reply["error"]["code"]) == (404, "unknown_trial")
        async with client.get("/t/new/samples") as response:
            assert response.status == 404
        for wrong in ({"temperature": 0}, {"heat": 1}, {"top_p": 0}, {"top_k": 1.5}, {"temperature": "hot"}, [1]):
            assert (await post(client, wrong, "/t/other"))[0] == 400
        assert (await post(client, {}, "/t/a%20b"))[0] == 400


async def test_a_request_may_open_the_trial_it_names_where_the_gateway_allows_it():
    async with open_gateway(StubSampler(), open_unknown=True) as (gateway, client):
        assert (await post(client, body("go", temperature=0.5), "/t/new/v1/chat/completions"))[0] == 200
        assert gateway.trial("new").trajectory.turns[0].sampling == Sampling(0.5)


async def test_an_empty_trial_has_no_streams_and_no_shares():
    async with open_gateway(StubSampler()) as (_, client), client.get("/t/t/samples") as response:
        given = await response.json()
    assert given["samples"] == []
    assert given["audit"] == {"clean": True, "drift": None, "reencoded_context": None}


async def test_models_are_listed_with_their_context():
    async with open_gateway(StubSampler()) as (_, client):
        for path in ("/v1/models", "/t/t/v1/models"):
            async with client.get(path) as response:
                (model,) = (await response.json())["data"]
            assert (model["id"], model["max_model_len"]) == (MODEL, 400)
        async with client.get(f"/v1/models/{MODEL}") as response:
            assert (await response.json())["id"] == MODEL
        async with client.get("/v1/models/other") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")


async def test_health_is_that_of_the_sampler():
    sampler = StubSampler()
    async with open_gateway(sampler) as (_, client):
        for changes, status in (({}, 200), ({"weight_version": 1}, 503)):
            sampler.changes = changes
            async with client.get("/health") as response:
                assert response.status == status


REFUSED = {
    "no JSON": (b"{", "invalid_json", None),
    "no object": (b"[]", "invalid_json", None),
    "lists without end": (b"[" * 200_000, "invalid_json", None),
    "objects without end": (b'{"a":' * 200_000, "invalid_json", None),
    "lists deeper than anything needs": (body("go", tools=json.loads("[" * 99 + "]" * 99)), "invalid_json", None),
    "half a surrogate": (body("\ud800"), "invalid_json", None),
    "half a surrogate in bytes": (json.dumps(body("?")).encode().replace(b"?", b"\xed\xa0\x80"), "invalid_json", None),
    "a number that is none": (body("go", temperature=float("nan")), "invalid_json", None),
    "no UTF-8": (b"\xff", "invalid_json", None),
    "no messages": ({"model": MODEL}, None, "messages"),
    "empty messages": (body(), None, "messages"),
    "a message of no role": (body({"content": "x"}), None, "messages[0]"),
    "a role that is a list": (body({"role": [], "content": "x"}), None, "messages[0]"),
    "calls that are a number": (body({"role": "assistant", "tool_calls": 5}, "x"), None, "messages[0].tool_calls"),
    "a message that is none": ({"model": MODEL, "messages": ["x"]}, None, "messages[0]"),
    "an image": (
        body({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "unsupported_value",
        "messages[0].content",
    ),
    "a number as content": (body({"role": "user", "content": 1}), None, "messages[0].content"),
    "an answer to continue": (body("go", {"role": "assistant", "content": "Well"}), "unsupported_value", "messages"),
    "a call without a function": (
        body({"role": "assistant", "tool_calls": [{}]}, "x"),
        None,
        "messages[0].tool_calls",
    ),
    "a system message in the middle": (body("go", {"role": "system", "content": "x"}), None, "messages"),
    "another model": (body("go", model="other"), "model_not_found", "model"),
    "no model": ({"messages": [{"role": "user", "content": "x"}]}, None, "model"),
    "several answers": (body("go", n=2), "unsupported_value", "n"),
    "stop texts": (body("go", stop=["\n"]), "unsupported_value", "stop"),
    "a penalty": (body("go", frequency_penalty=0.5), "unsupported_value", "frequency_penalty"),
    "a schema": (body("go", response_format={"type": "json_object"}), "unsupported_value", "response_format"),
    "a seed": (body("go", seed=1), "unsupported_value", "seed"),
    "other log-probs": (body("go", logprobs=True, top_logprobs=2), "unsupported_value", "top_logprobs"),
    "a forced tool": (body("go", tools=TOOLS, tool_choice="required"), "unsupported_value", "tool_choice"),
    "a tool that is no function": (body("go", tools=[{"type": "web"}]), "unsupported_value", "tools"),
    "an unknown field": (body("go", beam_width=3), "unknown_parameter", "beam_width"),
    "a greedy answer": (body("go", temperature=0), "unsupported_value", "temperature"),
    "next to a greedy answer": (body("go", temperature=1e-7), "unsupported_value", "temperature"),
    "a temperature beyond floats": (body("go", temperature=10**400), None, "temperature"),
    "a top-k beyond any vocabulary": (body("go", top_k=10**30), None, "top_k"),
    "more tokens than can be said": (body("go", max_tokens=int("9" * 4300)), None, "max_tokens"),
    "a top-p of nothing": (body("go", top_p=0), None, "top_p"),
    "a temperature in words": (body("go", temperature="hot"), None, "temperature"),
    "no tokens at all": (body("go", max_tokens=0), None, "max_tokens"),
    "tokens in words": (body("go", max_tokens="9"), None, "max_tokens"),
    "a flag in words": (body("go", stream="yes"), None, "stream"),
    "unknown stream options": (body("go", stream=True, stream_options={"x": 1}), None, "stream_options"),
    "a prompt beyond the context": (body("x" * 500), "context_length_exceeded", "messages"),
    "an answer beyond the context": (body("go", max_tokens=399), "context_length_exceeded", "messages"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_obeyed_is_refused_in_openais_words(name):
    asked, code, param = REFUSED[name]
    sampler = StubSampler()
    async with open_gateway(sampler) as (gateway, client):
        data = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        async with client.post(CHAT, data=data) as response:
            status, error = response.status, (await response.json())["error"]
        assert gateway.trial("t").trajectory.turns == ()
    assert status == (404 if code == "model_not_found" else 400)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert error["message"]
    assert sampler.calls == []


NEUTRAL = {
    "n": 1, "stop": None, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0,
    "response_format": {"type": "text"}, "seed": None, "user": "u", "metadata": {"a": "b"}, "session_id": "s",
    "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "store": False, "max_tokens": None,
}  # fmt: skip


async def test_fields_that_ask_for_nothing_are_taken():
    parts = [{"type": "text", "text": "g"}, {"type": "text", "text": "o"}]
    developer = {"role": "developer", "content": None}
    async with open_gateway(StubSampler()) as (gateway, client):
        status, _ = await post(client, body(developer, {"role": "user", "content": parts, "name": "n"}, **NEUTRAL))
        assert status == 200
        (turn,) = gateway.trial("t").trajectory.turns
    assert "user\ngo" in ByteTokenizer().decode(turn.prompt_ids)


async def test_a_model_whose_template_shows_no_tools_refuses_them():
    async with open_gateway(StubSampler(), source=chatml("")) as (_, client):
        status, reply = await post(client, body("go", tools=TOOLS))
    assert (status, reply["error"]["param"]) == (400, "tools")


async def test_an_answer_has_all_the_room_there_is_unless_a_limit_is_asked_for():
    sampler = StubSampler("cut short")
    async with open_gateway(sampler) as (gateway, client):
        _, reply = await post(client, body("go", max_completion_tokens=3))
        assert reply["choices"][0]["finish_reason"] == "length"
        await post(client, body("go"))
        cut, whole = gateway.trial("t").trajectory.turns
    assert cut.finish_reason == "length"
    assert sampler.calls[1][1]["max_new_tokens"] == 400 - len(whole.prompt_ids)


async def test_a_trial_with_its_own_sampling_refuses_or_overrules_another():
    for overrule in (False, True):
        sampler = StubSampler()
        async with open_gateway(sampler, overrule=overrule) as (gateway, client):
            gateway.open("own", Sampling(0.7))
            path = "/t/own/v1/chat/completions"
            status, reply = await post(client, body("go", temperature=0), path)
            assert status == (200 if overrule else 400)
            assert overrule or reply["error"]["param"] == "temperature"
            assert (await post(client, body("go", temperature=0.7), path))[0] == 200
            assert (await post(client, body("go"), path))[0] == 200
        assert {call["sampling"] for _, call in sampler.calls} == {Sampling(0.7)}


async def test_a_gateway_with_a_sampling_of_its_own_opens_every_trial_with_it():
    sampler = StubSampler()
    async with open_gateway(sampler, open_unknown=True, overrule=True, sampling=Sampling(0.1, 0.95, 20)) as (_, client):
        assert (await post(client, body("go", temperature=1.0), "/t/new/v1/chat/completions"))[0] == 200
    assert [call["sampling"] for _, call in sampler.calls] == [Sampling(0.1, 0.95, 20)]


async def test_a_gateway_bounds_an_answer_whatever_its_client_asks_for():
    sampler = StubSampler()
    async with open_gateway(sampler, context=120, max_answer_tokens=50) as (_, client):
        for asked in ({}, {"max_tokens": 999}, {"max_tokens": 7}):
            assert (await post(client, body("go", **asked)))[0] == 200
        assert (await post(client, body("x" * 60)))[0] == 200
        assert (await post(client, body("x" * 60, max_tokens=999)))[0] == 400, "fifty do not fit beside the prompt"
    *first, last = sampler.calls
    assert [call["max_new_tokens"] for _, call in first] == [50, 50, 7]
    assert last[1]["max_new_tokens"] == 120 - len(last[0]) < 50, "what is left of the context"


async def test_a_sampler_that_fails_is_a_server_error_that_a_client_may_retry():
    sampler = StubSampler(finish_reason="abort")
    async with open_gateway(sampler) as (gateway, client):
        status, reply = await post(client, body("go"))
        assert (status, reply["error"]["type"], reply["error"]["code"]) == (503, "server_error", "sampler")
        sampler.changes = {}
        assert (await post(client, body("go")))[0] == 200
        assert len(gateway.trial("t").trajectory.turns) == 1


class Spying(ByteTokenizer):
    """Remembers how long each text was that it encoded, and whether the event loop's thread did."""

    def __init__(self):
        self.seen = []

    def encode(self, text):
        self.seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return super().encode(text)


async def test_what_cannot_fit_the_context_is_refused_by_its_size_before_it_is_encoded():
    # 16 MB took 108 s of the event loop to be encoded, and were then refused.
    async with open_gateway(StubSampler()) as (gateway, client):
        gateway.template.tokenizer = spy = Spying()
        _, reply = await post(client, body("go"))
        said = ["go", reply["choices"][0]["message"]]
        encoded = len(spy.seen)
        for more in ("x" * 5_000, "é" * 2_500):
            for conversation in ([more], [*said, more]):
                status, reply = await post(client, body(*conversation))
                assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
                assert "maximum context length is 400 tokens" in reply["error"]["message"]
        assert len(spy.seen) == encoded
        status, reply = await post(client, body("x" * LEAST_BODY_BYTES))
        assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in reply["error"]["message"]


async def test_what_is_long_and_may_fit_is_encoded_beside_the_event_loop():
    async with open_gateway(StubSampler(), context=200_000) as (gateway, client):
        gateway.template.tokenizer = spy = Spying()
        for size in (1_000, AT_ONCE_BYTES + 1):
            assert (await post(client, body("x" * size)))[0] == 200
        long, tools = [{"type": "function", "function": {"name": "look", "description": "x" * AT_ONCE_BYTES}}], []
        for offered in (tools, long):
            assert (await post(client, body("go", tools=offered)))[0] == 200
    assert [alone for length, alone in spy.seen if length > AT_ONCE_BYTES] == [False, False]
    assert [alone for length, alone in spy.seen if length < AT_ONCE_BYTES] == [True, True]


async def test_trials_that_requests_open_are_bounded_and_those_that_nobody_asks_for_give_way():
    async with open_gateway(StubSampler(), open_unknown=True, max_unknown=2) as (gateway, client):

        async def ask(trial):
            return (await post(client, body("go"), f"/t/{trial}/v1/chat/completions"))[0]

        assert [await ask(trial) for trial in ("a", "b", "a", "c", "t")] == [200, 200, 200, 429, 200]
        async with client.delete("/t/a") as response:
            assert response.status == 200
        assert [await ask(trial) for trial in ("c", "b", "d")] == [200, 200, 429]
        gateway.unknown_idle_s = 0.0
        assert [await ask(trial) for trial in ("d", "b")] == [200, 200]
        with pytest.raises(Refusal, match="unknown trial 'c'"):
            gateway.trial("c")
        assert len(gateway.trial("b").trajectory.turns) == 3


@pytest.mark.parametrize("path", [CHAT, "/t/new"])
async def test_a_body_that_is_not_what_its_headers_say_is_refused(path):
    async with (
        open_gateway(StubSampler()) as (_, client),
        client.post(path, data=b"no gzip", headers={"Content-Encoding": "gzip"}) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["message"]


async def test_arguments_that_cannot_be_worked_with_are_text():
    call = {"type": "function", "function": {"name": "look", "arguments": "[" * 2_000}}
    async with open_gateway(StubSampler(), context=3_000) as (_, client):
        assert (await post(client, body("go", {"role": "assistant", "tool_calls": [call]}, "on")))[0] == 200


class Broken(StubSampler):
    """Fails as nobody has foreseen, once it may."""

    async def generate(self, prompt_ids, **call):
        await self.held.wait()
        raise ZeroDivisionError("not for clients")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_nobody_has_foreseen_is_an_error_object_and_stands_in_the_log(stream, caplog):
    async with open_gateway(Broken()) as (gateway, client):
        status, reply = await post(client, body("go", stream=stream))
        assert gateway.trial("t").trajectory.turns == ()
    assert (status, reply["error"]["type"], reply["error"]["code"]) == (500, "server_error", "internal_error")
    assert "not for clients" not in json.dumps(reply)
    assert "not for clients" in caplog.text


async def test_it_is_an_event_of_a_stream_that_has_begun(caplog):
    # The connection broke in the middle of the stream, and nothing said why.
    sampler = Broken()
    sampler.held.clear()
    async with (
        open_gateway(sampler, keepalive_s=0.01) as (_, client),
        client.post(CHAT, json=body("go", stream=True)) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == b": drawing\n\n"
        sampler.held.set()
        rest = (await response.text()).rpartition("data: ")[2]
    assert json.loads(rest)["error"]["code"] == "internal_error"
    assert "not for clients" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_could_not_be_told_is_withdrawn(stream, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(app, "chunks" if stream else "completion", fail)
    async with open_gateway(StubSampler()) as (gateway, client):
        assert (await post(client, body("go", stream=stream)))[0] == 500
        assert gateway.trial("t").trajectory.turns == ()


async def test_requests_at_once_in_one_trial_are_branches_of_it():
    sampler = StubSampler("trunk", "left", "right")
    async with open_gateway(sampler) as (gateway, client):
        _, reply = await post(client, body("go"))
        trunk = reply["choices"][0]["message"]
        sampler.held.clear()
        asked = [asyncio.create_task(post(client, body("go", trunk, way))) for way in ("a", "b")]
        await until(lambda: len(sampler.calls) == 3)
        sampler.held.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]
        turns = gateway.trial("t").trajectory.turns
    samples = stitch(turns, ByteTokenizer())
    report = audit(turns, samples, ByteTokenizer())
    assert (len(turns), len(samples), report.clean, report.reencoded_context) == (3, 2, True, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_cancels_its_generation_and_leaves_no_trace(stream):
    sampler = StubSampler()
    sampler.held.clear()
    async with open_gateway(sampler, keepalive_s=0.01) as (gateway, client):
        asking = asyncio.create_task(post(client, body("go", stream=stream)))
        await until(lambda: sampler.calls)
        asking.cancel()
        await until(lambda: sampler.cancelled)
        sampler.held.set()
        assert gateway.trial("t").trajectory.turns == ()
        assert (await post(client, body("go")))[0] == 200
        assert len(gateway.trial("t").trajectory.turns) == 1


async def test_an_answer_that_could_not_be_written_is_withdrawn():
    """A reply larger than the sockets hold, to a client that reads nothing and resets."""
    sampler = StubSampler("x" * 80_000)
    async with open_gateway(sampler, context=100_000, capture=False) as (gateway, client):
        trajectory = gateway.trial("t").trajectory
        asked = json.dumps(body("go", logprobs=True)).encode()
        _, writer = await asyncio.open_connection(client._base_url.host, client._base_url.port, limit=1024)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(asked)}\r\n\r\n"
        writer.write(head.encode() + asked)
        await until(lambda: trajectory.turns)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.close()
        await until(lambda: not trajectory.turns)


async def test_an_unknown_path_is_an_error_object_too():
    async with open_gateway(StubSampler()) as (_, client), client.get("/v1/embeddings") as response:
        assert response.status == 404
        assert "/v1/embeddings" in (await response.json())["error"]["message"]
