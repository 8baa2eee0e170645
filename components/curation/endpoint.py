"""A model behind an endpoint that speaks OpenAI's chat completions: one question, one answer, with its cost.

Invariants: the key comes from the environment, stands in no configuration, and in no message or log, also when the
endpoint repeats it; every wait, and what is read of an answer, is bounded; only a completion is an answer, whatever the
status says; an endpoint that answers nothing at all stops whoever asks it, instead of being asked about every task of a
pool.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import aiohttp

from components.config import EndpointConfig
from components.errors import ConfigError, LongshellError, ServiceError

log = logging.getLogger(__name__)

TRIES = 5
"""Times a request is sent while the endpoint is away or busy."""
LONGEST_WAIT_S = 60.0
"""Also where `Retry-After` says more."""
OUTAGE = 20
"""Requests in a row without an answer after which the endpoint is taken for lost."""
_BUSY = {408, 409, 425, 429}
_NOT_OURS = {401, 403, 404, 405}
"""A key, a right or a path that is wrong: wrong for every request."""
DETAIL_CHARS = 300
LONGEST_ANSWER = 16 << 20
"""What is longer is given up while it arrives: whoever answers may be anybody, and this job's memory is not theirs."""


class _TooLong(Exception):
    """An answer is longer than any that was asked for."""


class Unanswered(LongshellError, RuntimeError):
    """One request has no answer. The next may have one."""


class Declined(Unanswered):
    """The endpoint refuses this request, and would refuse it again: it is too long, or asks for what it does not do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said. Counts that the endpoint does not tell are None."""

    text: str
    finish: str | None
    prompt_tokens: int | None
    completion_tokens: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def cost(self, config: EndpointConfig) -> float | None:
        """US dollars; None where prices or counts are unknown."""
        if config.input_price is None or config.output_price is None:
            return None
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return (self.prompt_tokens * config.input_price + self.completion_tokens * config.output_price) / 1e6


class Endpoint:
    """One endpoint, used within one event loop as an asynchronous context manager.

    Args:
        environment: where the key is looked up.
        retry_s: the first wait before a request is sent again; it doubles.

    Raises:
        ConfigError: the environment has no such key.
    """

    def __init__(
        self, config: EndpointConfig, environment: Mapping[str, str] | None = None, *, retry_s: float = 1.0
    ) -> None:
        self.config = config
        self._key = _key(config, os.environ if environment is None else environment)
        self._retry_s = retry_s
        self._failures = 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Endpoint:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=self.config.timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector, trust_env=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, system: str, user: str, schema: Mapping[str, Any], name: str) -> Answer:
        """Asks for a JSON object.

        Args:
            system: who the model is. Words of ours alone.
            user: the question.
            schema: of the object, sent where the configuration says that the endpoint enforces schemas.
            name: of the schema.

        Raises:
            Unanswered: this request was refused, or not answered after several tries.
            ServiceError: the endpoint has answered nothing for as many requests.
            ConfigError: the endpoint refuses every request: key, model or path are wrong.
        """
        return await self._answered(
            self._form(schema, name) | self._body([_said("system", system), _said("user", user)])
        )

    async def converse(self, messages: Sequence[tuple[str, str]]) -> Answer:
        """Asks for the next message of a conversation, in whatever form it comes.

        Args:
            messages: (role, content) of each.

        Raises:
            Unanswered, ServiceError, ConfigError: as `ask`.
        """
        return await self._answered(self._body([_said(role, content) for role, content in messages]))

    async def _answered(self, body: Mapping[str, Any]) -> Answer:
        try:
            answer = await self._persist(body)
        except Unanswered as error:
            self._failures += 1
            if self._failures >= OUTAGE:
                raise ServiceError(f"{self.config.base_url}: {OUTAGE} requests without an answer; {error}") from error
            raise
        self._failures = 0
        return answer

    def _body(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": messages,
            self.config.limit: self.config.max_tokens,
        }
        if self.config.temperature is not None:
            body["temperature"] = self.config.temperature
        return body

    def _form(self, schema: Mapping[str, Any], name: str) -> dict[str, Any]:
        match self.config.structured:
            case "none":
                return {}
            case "object":
                return {"response_format": {"type": "json_object"}}
            case "schema":
                form = {"name": name, "strict": True, "schema": schema}
                return {"response_format": {"type": "json_schema", "json_schema": form}}

    async def _persist(self, body: Mapping[str, Any]) -> Answer:
        wait_s = self._retry_s
        for number in range(1, TRIES + 1):
            status, text, after = await self._send(body)
            if status == 200 and (answer := _answer(text)) is not None:
                return answer
            said = "HTTP 200 without a completion: " if status == 200 else f"HTTP {status}: " if status else ""
            told = f"{said}{self._shown(text)}"
            if status in _NOT_OURS:
                raise ConfigError([f"{self.config.base_url} refuses every request: {told}"], "endpoint")
            if status is not None and status != 200 and status < 500 and status not in _BUSY:
                raise Declined(f"the endpoint refuses the request: {told}")
            if number < TRIES:
                log.warning("endpoint: %s; try %d of %d", told, number, TRIES)
                await asyncio.sleep(min(LONGEST_WAIT_S, max(wait_s, after)))
                wait_s *= 2
        raise Unanswered(f"no answer after {TRIES} tries: {told}")

    async def _send(self, body: Mapping[str, Any]) -> tuple[int | None, str, float]:
        """(status, body, seconds that the endpoint asks us to wait); no status where nothing came back."""
        assert self._session is not None, "an Endpoint is used within `async with`"
        try:
            url = f"{self.config.base_url}/chat/completions"
            async with self._session.post(url, json=body, allow_redirects=False) as response:
                return response.status, await _text(response), _seconds(response.headers)
        except _TooLong:
            return None, f"an answer of more than {LONGEST_ANSWER >> 20} MiB", 0.0
        except TimeoutError:
            return None, f"no answer within {self.config.timeout_s:g} s", 0.0
        except (aiohttp.ClientError, OSError) as error:
            return None, f"{type(error).__name__}: {error}", 0.0

    def _shown(self, text: str) -> str:
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:DETAIL_CHARS]


async def _text(response: aiohttp.ClientResponse) -> str:
    data = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > LONGEST_ANSWER:
            raise _TooLong
    return data.decode("utf-8", "replace")


def _key(config: EndpointConfig, environment: Mapping[str, str]) -> str | None:
    if config.api_key_env is None:
        return None
    if key := environment.get(config.api_key_env):
        return key
    advice = "set it (for a job, where Ray's head is started), or say that none is needed (api_key_env: null; --no-key)"
    raise ConfigError([f"the environment variable {config.api_key_env} is not set: {advice}"], "endpoint")


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:  # A date: our own waits are bounded anyway.
        return 0.0


def _answer(text: str) -> Answer | None:
    """A completion; one without content is an empty text, which no reader takes for an answer.

    None where there is no message: a gateway's error, or a proxy's page, with the status of an answer.
    """
    try:
        document = json.loads(text)
        choice = document["choices"][0]
        content = choice["message"].get("content")
        finish = choice.get("finish_reason")
        usage = document.get("usage")
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    usage = usage if isinstance(usage, dict) else {}
    return Answer(
        content if isinstance(content, str) else "",
        finish if isinstance(finish, str) else None,
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
