"""A conversation as agents write it: messages with roles, tool calls, and the reasoning that agents leave out.

Invariant: two messages are equal when they mean the same. How the arguments of a call were serialised, what a client
names a call, and whether reasoning was sent back, make no difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from components.gateway.foreign import read_json

Role = Literal["system", "user", "assistant", "tool"]

THOUGHT_START, THOUGHT_END = "<think>", "</think>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function. `arguments` is its JSON text; `meaning` is what is compared."""

    name: str
    arguments: str = field(compare=False)
    meaning: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meaning", json.dumps(self.value, sort_keys=True))

    @property
    def value(self) -> Any:
        """The arguments, parsed; their text when it is no JSON, or none that can be worked with."""
        try:
            return read_json(self.arguments)
        except ValueError:
            return self.arguments


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `reasoning` was sampled in front of `content` and is shown apart from it."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    name: str = ""
    reasoning: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        """Bytes of its texts."""
        called = [text for call in self.calls for text in (call.name, call.arguments)]
        return sum(len(text.encode()) for text in (self.content, self.reasoning, self.name, *called))

    def echoes(self, recorded: Message) -> bool:
        """Whether this is what a client makes of a recorded answer: white space around it may be gone."""
        return (
            self.role == recorded.role
            and self.content.strip() == recorded.content.strip()
            and self.calls == recorded.calls
        )

    def fields(self, plain: Callable[[str], str]) -> dict[str, Any]:
        """What a chat template reads, every text of it made `plain`."""
        found: dict[str, Any] = {"role": self.role, "content": plain(self.content)}
        if self.reasoning:
            found["reasoning_content"] = plain(self.reasoning)
        if self.name:
            found["name"] = plain(self.name)
        if self.calls:
            functions = [{"name": plain(call.name), "arguments": made_plain(call.value, plain)} for call in self.calls]
            found["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        return found


def user(text: str) -> Message:
    """A user message: what most observations are."""
    return Message("user", text)


def read_answer(text: str, *, reasoning: bool, tools: bool) -> Message:
    """The message that a sampled text is.

    Args:
        reasoning: what stands before `</think>` is reasoning, whether `<think>` was sampled or stood in the prompt.
        tools: `<tool_call>{"name": ..., "arguments": ...}</tool_call>` is a call. If one cannot be read, all stay text.
    """
    thought = ""
    if reasoning and THOUGHT_END in text:
        thought, _, text = text.partition(THOUGHT_END)
        thought, text = thought.strip().removeprefix(THOUGHT_START).strip(), text.lstrip("\n")
    said, found = _without_calls(text) if tools else (text, [])
    calls = tuple(call for call in map(_call, found) if call is not None)
    if not calls or len(calls) < len(found):
        return Message("assistant", text, reasoning=thought)
    return Message("assistant", said.strip(), calls, reasoning=thought)


def _without_calls(text: str) -> tuple[str, list[str]]:
    """What stands around the calls, and what stands in each. Looks at no character twice, however a text goes on."""
    said, calls, at = [], [], 0
    while (start := text.find(CALL_START, at)) >= 0:
        end = text.find(CALL_END, start)
        if end < 0:
            break
        said.append(text[at:start])
        calls.append(text[start + len(CALL_START) : end])
        at = end + len(CALL_END)
    return "".join([*said, text[at:]]), calls


def _call(text: str) -> ToolCall | None:
    try:
        call = read_json(text)
        return ToolCall(call["name"] + "", json.dumps(call.get("arguments", {}), ensure_ascii=False))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def made_plain(value: Any, plain: Callable[[str], str]) -> Any:
    """The same value with every string in it made plain."""
    match value:
        case str():
            return plain(value)
        case list():
            return [made_plain(item, plain) for item in value]
        case dict():
            return {plain(key): made_plain(item, plain) for key, item in value.items()}
        case _:
            return value
