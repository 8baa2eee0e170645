"""An OpenAI chat request: read, checked, refused. Pure.

Invariant: a request that passes is one whose every field was obeyed. A field that would change the answer and is not
implemented is refused unless it holds its neutral value; an unknown field is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.bounds import LEAST_TEMPERATURE, MOST_TEMPERATURE, MOST_TOP_K
from components.errors import LongshellError
from components.gateway.foreign import read_json
from components.gateway.message import Message, Role, ToolCall
from components.records import Sampling

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stop": ([], ""),
    "seed": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "web_search_options": (),
    "prompt_logprobs": (0,),
}
"""Fields that are known and not implemented, with the values that ask for nothing. Null always is one."""

IGNORED = frozenset({"user", "metadata", "session_id", "safety_identifier", "prompt_cache_key"})
"""Fields that never change an answer."""

MOST_TOKENS = 2**31 - 1
"""More than any context: what is refused with a number can also be said."""

SAMPLING = ("temperature", "top_p", "top_k")
READ = frozenset(
    {
        "model", "messages", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options", "logprobs",
        "return_token_ids", "return_routed_experts", *SAMPLING,
    }
)  # fmt: skip
ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class Refusal(LongshellError, ValueError):
    """A request that cannot be answered, as OpenAI's API says it: an HTTP status and an error object."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "invalid_request_error", param: str = "", code: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The body of the response."""
        error = {"message": str(self), "type": self.kind, "param": self.param or None, "code": self.code or None}
        return {"error": error}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks for. `sampling` holds the parameters it named, `max_tokens` is None when it named none."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    sampling: Mapping[str, float]
    max_tokens: int | None
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    routed_experts: bool


def read_request(data: bytes) -> ChatRequest:
    """Reads the body of a chat completion request.

    Raises:
        Refusal: says what is wrong and, in `param`, where.
    """
    body = {key: value for key, value in read_object(data).items() if value is not None}
    _refuse_others(body)
    options = body.get("stream_options", {})
    if not isinstance(options, dict) or options.keys() - {"include_usage"}:
        raise Refusal("stream_options may hold include_usage only", param="stream_options")
    return ChatRequest(
        model=_text(body.get("model"), "model"),
        messages=_messages(body.get("messages")),
        tools=_tools(body.get("tools", [])),
        sampling={name: _number(body[name], name) for name in SAMPLING if name in body},
        max_tokens=_max_tokens(body),
        stream=_flag(body, "stream"),
        include_usage=_flag(options, "include_usage"),
        logprobs=_flag(body, "logprobs"),
        token_ids=_flag(body, "return_token_ids"),
        routed_experts=_flag(body, "return_routed_experts"),
    )


def read_object(data: bytes) -> dict[str, Any]:
    """A body that is a JSON object.

    Raises:
        Refusal: it is none.
    """
    try:
        body = read_json(data)
    except ValueError as error:
        raise Refusal(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object", code="invalid_json")
    return body


def read_sampling(given: Mapping[str, Any]) -> Sampling:
    """The sampling that these parameters name; what they leave out is neutral.

    Raises:
        Refusal: an unknown name, or a value that nothing can be trained on.
    """
    for name in given.keys() - set(SAMPLING):
        raise Refusal(f"{name} is no parameter of sampling", param=name, code="unknown_parameter")
    temperature, top_p, top_k = (
        _number(given.get(name, neutral), name) for name, neutral in zip(SAMPLING, (1.0, 1.0, -1), strict=True)
    )
    if not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        message = (
            f"temperature must be from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE:g}: a greedy answer has no log-prob "
            "that it was drawn with"
        )
        raise Refusal(message, param="temperature", code="unsupported_value")
    if not 0 < top_p <= 1:
        raise Refusal("top_p must be in (0, 1]", param="top_p")
    if top_k != int(top_k) or top_k > MOST_TOP_K:
        raise Refusal(f"top_k must be a whole number of at most {MOST_TOP_K}", param="top_k")
    return Sampling(float(temperature), float(top_p), int(top_k) if top_k > 0 else -1)


def _refuse_others(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in READ or name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise Refusal(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
        if value not in NEUTRAL[name]:
            message = f"Unsupported value: {name}={json.dumps(value)} is not supported by this gateway"
            raise Refusal(message, param=name, code="unsupported_value")


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refusal("messages must be a list that is not empty", param="messages")
    messages = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))
    if messages[-1].role == "assistant":
        message = "the last message is the assistant's: continuing it is not supported"
        raise Refusal(message, param="messages", code="unsupported_value")
    return messages


def _message(value: Any, param: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str) or value["role"] not in ROLES:
        raise Refusal(f"{param} must be an object with a role of {', '.join(ROLES)}", param=param)
    for name in ("function_call", "audio"):
        if value.get(name) is not None:
            raise Refusal(f"{param}.{name} is not supported", param=f"{param}.{name}", code="unsupported_value")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Refusal(f"{param}.tool_calls must be a list", param=f"{param}.tool_calls")
    reasoning = value.get("reasoning_content") or value.get("reasoning") or ""
    return Message(
        role=ROLES[value["role"]],
        content=_content(value.get("content"), f"{param}.content"),
        calls=tuple(_call(item, f"{param}.tool_calls") for item in calls),
        name=_text(value.get("name") or "", f"{param}.name"),
        reasoning=_text(reasoning, f"{param}.reasoning_content"),
    )


def _content(value: Any, param: str) -> str:
    """A text, nothing, or a list of text parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Refusal(f"{param} must be a string or a list of parts", param=param)
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Refusal(f"{param} may hold text parts only", param=param, code="unsupported_value")
        texts.append(part["text"])
    return "".join(texts)


def _call(value: Any, param: str) -> ToolCall:
    try:
        name, arguments = value["function"]["name"], value["function"]["arguments"]
    except (KeyError, TypeError) as error:
        raise Refusal(f"{param} must hold functions with a name and arguments", param=param) from error
    return ToolCall(_text(name, param), _text(arguments, param))


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list):
        raise Refusal("tools must be a list", param="tools")
    for tool in value:
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise Refusal("tools may hold functions only", param="tools", code="unsupported_value")
    return tuple(value)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    given = [body[name] for name in ("max_completion_tokens", "max_tokens") if name in body]
    if not given:
        return None
    if type(given[0]) is not int or not 1 <= given[0] <= MOST_TOKENS:
        message = f"max_tokens must be from 1 to {MOST_TOKENS}, got {json.dumps(given[0])}"
        raise Refusal(message, param="max_tokens")
    return int(given[0])


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise Refusal(f"{param} must be a string", param=param)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(f"{name} must be true or false", param=name)
    return value


def _number(value: Any, name: str) -> float:
    # Compared, not converted: a whole number may be too long for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise Refusal(f"{name} must be a number", param=name)
    return value
