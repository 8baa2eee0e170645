"""One question over HTTP, with everything that can go wrong on the way."""

from __future__ import annotations

import logging

import pytest

from components.config import JudgeConfig
from components.curation.endpoint import TRIES, Endpoint, Unanswered
from components.errors import ConfigError, ServiceError
from tests.curation.scripted_judge import KEY, Reply, ScriptedJudge

ENVIRONMENT = {"JUDGE_API_KEY": KEY}


def endpoint(judge: ScriptedJudge, **changes: object) -> Endpoint:
    config = JudgeConfig.model_validate({**judge.settings(), **changes})
    return Endpoint(config, ENVIRONMENT, retry_s=0.001)


async def ask(asked: Endpoint) -> str:
    async with asked:
        return (await asked.ask("system", "user", {"type": "object"}, "opinion")).text


async def test_a_busy_endpoint_is_asked_again() -> None:
    replies: list[str | Reply] = [(429, "slow down"), (503, ""), "yes"]
    with ScriptedJudge(lambda _, before: replies[before]) as judge:
        assert await ask(endpoint(judge)) == "yes"
        assert len(judge.requests) == 3
        assert judge.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert judge.requests[0]["response_format"]["json_schema"]["strict"] is True


async def test_what_is_configured_is_what_is_sent() -> None:
    with ScriptedJudge(lambda *_: "yes") as judge:
        await ask(endpoint(judge, temperature=None, structured="none", limit="max_completion_tokens"))
        await ask(endpoint(judge, structured="object"))
    plain, object_ = judge.requests
    assert sorted(plain) == ["max_completion_tokens", "messages", "model"]
    assert (object_["response_format"], object_["temperature"]) == ({"type": "json_object"}, 0.7)


async def test_tries_are_bounded_and_an_outage_stops_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.curation.endpoint.OUTAGE", 3)
    with ScriptedJudge(lambda *_: (500, "oops")) as judge:
        asked = endpoint(judge)
        async with asked:
            for _ in range(2):
                with pytest.raises(Unanswered, match="HTTP 500: oops"):
                    await asked.ask("s", "u", {}, "n")
            with pytest.raises(ServiceError, match="3 requests without an answer"):
                await asked.ask("s", "u", {}, "n")
        assert len(judge.requests) == 3 * TRIES


async def test_a_request_that_is_refused_is_not_repeated() -> None:
    with ScriptedJudge(lambda *_: (400, "too long")) as judge:
        with pytest.raises(Unanswered, match="refuses the request: HTTP 400: too long"):
            await ask(endpoint(judge))
        assert len(judge.requests) == 1


async def test_the_key_is_in_no_message_and_no_log_also_when_the_endpoint_repeats_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    told = f"Incorrect API key provided: {KEY}"
    refused = r"refuses every request: HTTP 401: Incorrect API key provided: \*\*\*"
    with (
        ScriptedJudge(lambda _, before: (401 if before else 500, told)) as judge,
        pytest.raises(ConfigError, match=refused) as caught,
    ):
        await ask(endpoint(judge))
    assert len(judge.requests) == 2
    assert KEY not in caplog.text + str(caught.value) + repr(caught.value)


async def test_a_missing_key_is_refused_and_an_endpoint_may_want_none() -> None:
    with ScriptedJudge(lambda *_: "yes") as judge:
        config = JudgeConfig.model_validate(judge.settings())
        with pytest.raises(ConfigError, match="JUDGE_API_KEY is not set"):
            Endpoint(config, {})
        assert await ask(Endpoint(config.model_copy(update={"api_key_env": None}), {})) == "yes"
        assert "Authorization" not in judge.headers[0]


NO_COMPLETIONS = [
    *("", "<html>", "[]", "{}", '{"error": {"message": "overloaded"}}'),
    *('{"choices": null}', '{"choices": []}', '{"choices": [{"message": null}]}', '{"choices": [{"text": "yes"}]}'),
]
"""A proxy's page, and what gateways say with the status 200 where the model behind them failed: each of them was once
taken for an empty answer, and kept."""


@pytest.mark.parametrize("body", NO_COMPLETIONS)
async def test_a_200_that_is_no_completion_is_asked_again_and_is_no_answer(body: str) -> None:
    replies: list[str | Reply] = [(200, body), "yes"]
    with ScriptedJudge(lambda _, before: replies[before]) as judge:
        assert await ask(endpoint(judge)) == "yes"
    with ScriptedJudge(lambda *_: (200, body)) as judge:
        with pytest.raises(Unanswered, match=f"no answer after {TRIES} tries: HTTP 200 without a completion"):
            await ask(endpoint(judge))
        assert len(judge.requests) == TRIES


async def test_a_completion_without_content_is_an_empty_answer() -> None:
    with ScriptedJudge(lambda *_: (200, '{"choices": [{"message": {"content": null}}]}')) as judge:
        assert await ask(endpoint(judge)) == ""
        assert len(judge.requests) == 1


async def test_an_answer_without_end_is_given_up_and_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.curation.endpoint.LONGEST_ANSWER", 1 << 20)
    replies: list[str | Reply] = ["x" * (2 << 20), "yes"]
    with ScriptedJudge(lambda _, before: replies[before]) as judge:
        assert await ask(endpoint(judge)) == "yes"
        assert len(judge.requests) == 2


async def test_nobody_there_is_no_answer() -> None:
    with ScriptedJudge(lambda *_: "yes") as judge:
        asked = endpoint(judge)
    with pytest.raises(Unanswered, match=f"no answer after {TRIES} tries: ClientConnectorError"):
        await ask(asked)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"base_url": "ftp://x"}, "http:// or https://"),
        ({"base_url": "https://user:word@host/v1"}, "no credentials"),
        ({"samples": 2}, "must be odd"),
        ({"budget": 1.0}, "budget needs"),
        ({"input_price": 1.0}, "together"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        JudgeConfig.model_validate({"base_url": "http://h/v1", "model": "m", **changes})
