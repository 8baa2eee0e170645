"""The official clients, unmodified, against a gateway process before the embedded sampler with a random model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from components.tito import BpeTokenizer
from tests.gateway.conftest import CONTEXT
from tests.gateway.parts import MODEL
from tests.sampler.conftest import Oracle

EXTRAS = {"return_token_ids": True, "return_routed_experts": True}


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def client(url: str, trial: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/t/{trial}/v1", api_key="none", max_retries=0, timeout=60)


def converse(ask: Any, turns: int, said: list[dict[str, Any]]) -> list[Any]:
    """Plays an agent that echoes what it was told. `ask` takes the messages and gives a reply."""
    replies = []
    for number in range(turns):
        replies.append(ask(said))
        message = replies[-1].choices[0].message
        said += [{"role": "assistant", "content": message.content}, {"role": "user", "content": f"saw {number}"}]
    return replies


def test_the_openai_client_gets_what_was_drawn_and_the_trainer_would_draw_it_alike(
    gateway_url: str, tiny_folder: Path
) -> None:
    """Tokens, log-probs and experts of a trial, against the model itself on the trial's one stream."""
    agent = client(gateway_url, "openai")
    assert [model.id for model in agent.models.list()] == [MODEL]

    def ask(said: list[dict[str, Any]]) -> Any:
        return agent.chat.completions.create(
            model=MODEL, messages=said, max_tokens=40, logprobs=True, extra_body=EXTRAS
        )

    replies = converse(ask, 4, [{"role": "system", "content": "S"}, {"role": "user", "content": "go"}])
    given = fetch(f"{gateway_url}/t/openai/samples")
    assert given["audit"] == {"clean": True, "drift": 0, "reencoded_context": 0}
    (stream,) = given["samples"]
    tokens, mask = np.array(stream["tokens"]), np.array(stream["loss_mask"], bool)
    ids = [token for reply in replies for token in reply.choices[0].token_ids]
    assert tokens[mask].tolist() == ids
    logprobs = [entry.logprob for reply in replies for entry in reply.choices[0].logprobs.content]
    assert np.array(stream["logprobs"])[mask].tolist() == logprobs
    for before, after in pairwise(replies):
        known = [*before.prompt_token_ids, *before.choices[0].token_ids]
        assert after.prompt_token_ids[: len(known)] == known
    forced = Oracle(tiny_folder)(tokens.tolist())
    np.testing.assert_allclose(forced.logprobs(tokens.tolist(), 1)[mask[1:]], logprobs, atol=2e-5)
    rows = stream["routed_experts"]["shape"][0]
    assert rows == len(tokens) - 1
    assert replies[-1].choices[0].routed_experts["shape"][0] <= rows


def test_the_openai_client_streams(gateway_url: str) -> None:
    agent = client(gateway_url, "streamed")
    said: list[Any] = [{"role": "user", "content": "go"}]
    options = {"include_usage": True}
    stream = agent.chat.completions.create(
        model=MODEL, messages=said, max_tokens=30, stream=True, stream_options=options, extra_body=EXTRAS
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    end = chunks[-2].choices[0]
    assert end.finish_reason in ("stop", "length")
    assert chunks[-1].usage.completion_tokens == len(end.token_ids)
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
    agent.chat.completions.create(model=MODEL, messages=said, max_tokens=5)
    given = fetch(f"{gateway_url}/t/streamed/samples")
    assert [sample["boundaries"]["strict"] for sample in given["samples"]] == [1]


def test_the_openai_client_raises_its_own_errors(gateway_url: str) -> None:
    agent = client(gateway_url, "errors")
    said: list[Any] = [{"role": "user", "content": "x" * CONTEXT}]
    with pytest.raises(openai.BadRequestError, match="maximum context length") as overflow:
        agent.chat.completions.create(model=MODEL, messages=said)
    assert overflow.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as several:
        agent.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], n=2)
    assert several.value.param == "n"
    with pytest.raises(openai.NotFoundError) as unknown:
        agent.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found"


async def test_a_client_that_hangs_up_stops_the_engine(gateway_url: str, tiny_sampler: Any) -> None:
    agent = openai.AsyncOpenAI(base_url=f"{gateway_url}/t/hung/v1", api_key="none", max_retries=0)
    async with agent, aiohttp.ClientSession(tiny_sampler.url) as engine:

        async def running() -> int:
            async with engine.get("/server_info") as response:
                return int((await response.json())["internal_states"][0]["running"])

        async def asked(number: int) -> asyncio.Task[Any] | None:
            """A request whose generation is frozen half way; None when it was over before."""
            said: list[Any] = [{"role": "user", "content": f"go {number}"}]
            asking = asyncio.create_task(agent.chat.completions.create(model=MODEL, messages=said))
            while not asking.done() and not await running():
                await asyncio.sleep(0.001)
            await engine.post("/pause_generation", json={"mode": "in_place"})
            if await running():
                return asking
            await engine.post("/continue_generation")
            await asking
            return None

        done = 0
        async with asyncio.timeout(60):
            while (asking := await asked(done)) is None:
                done += 1
            asking.cancel()
            while await running():
                await asyncio.sleep(0.001)
        await engine.post("/continue_generation")
        assert len(fetch(f"{gateway_url}/t/hung/samples")["samples"]) == done


@pytest.fixture(scope="module")
def litellm() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    yield litellm
    patch.undo()


@pytest.mark.nightly  # litellm is imported for seconds
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_plays_a_trial_with_token_fields_as_harbor_asks_for_them(
    gateway_url: str, tiny_folder: Path, litellm: Any, provider: str
) -> None:
    """The request of Harbor's Terminus-2 when it collects rollout details, and what it reads of the reply."""
    trial = f"litellm-{provider}"
    headers = {"X-Session-ID": "an id of the agent's own"}
    body = {"return_token_ids": True, "session_id": "an id of the agent's own"}

    def ask(said: list[dict[str, Any]]) -> Any:
        return litellm.completion(
            model=f"{provider}/{MODEL}", api_base=f"{gateway_url}/t/{trial}/v1", api_key="none", messages=said,
            max_tokens=30, temperature=1.0, logprobs=True, extra_headers=headers, extra_body=body, num_retries=0,
        )  # fmt: skip

    replies = converse(ask, 3, [{"role": "user", "content": "go"}])
    (stream,) = fetch(f"{gateway_url}/t/{trial}/samples")["samples"]
    drawn = [reply.choices[0].provider_specific_fields["token_ids"] for reply in replies]
    assert [len(ids) for ids in drawn] == [len(reply.choices[0].logprobs.content) for reply in replies]
    trained = [token for token, m in zip(stream["tokens"], stream["loss_mask"], strict=True) if m]
    assert trained == [token for ids in drawn for token in ids]
    tokenizer = BpeTokenizer.load(tiny_folder)
    assert tokenizer.decode(replies[0].prompt_token_ids).endswith("assistant\n")


@pytest.mark.nightly
def test_litellm_recognises_an_overflow_and_streams(gateway_url: str, litellm: Any) -> None:
    where = {"model": f"openai/{MODEL}", "api_base": f"{gateway_url}/t/litellm-stream/v1", "api_key": "none"}
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**where, messages=[{"role": "user", "content": "x" * CONTEXT}], num_retries=0)
    said = [{"role": "user", "content": "go"}]
    chunks = list(litellm.completion(**where, messages=said, max_tokens=20, stream=True, num_retries=0))
    whole = litellm.stream_chunk_builder(chunks, messages=said)
    said += [{"role": "assistant", "content": whole.choices[0].message.content}, {"role": "user", "content": "on"}]
    litellm.completion(**where, messages=said, max_tokens=5, num_retries=0)
    given = fetch(f"{gateway_url}/t/litellm-stream/samples")
    assert [sample["boundaries"]["strict"] for sample in given["samples"]] == [1]
