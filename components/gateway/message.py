"""A conversation as agents write it: messages with roles, tool calls, and the reasoning that agents leave out.

Invariant: two messages are equal when they mean the same. How the arguments of a call were serialised, what a client
names a call, and whether reasoning was sent back, make no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]

THOUGHT_START, THOUGHT_END = "<think>", "</think>"
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


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
        """The arguments, parsed; their text when it is not JSON."""
        try:
            return json.loads(self.arguments)
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
            functions = [{"name": plain(call.name), "arguments": _plain(call.value, plain)} for call in self.calls]
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
    read = [_call(found) for found in CALL.findall(text)] if tools else []
    calls = tuple(call for call in read if call is not None)
    if not calls or len(calls) < len(read):
        return Message("assistant", text, reasoning=thought)
    return Message("assistant", CALL.sub("", text).strip(), calls, reasoning=thought)


def _call(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
        return ToolCall(call["name"] + "", json.dumps(call.get("arguments", {}), ensure_ascii=False))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(value: Any, plain: Callable[[str], str]) -> Any:
    """The same value with every string in it made plain."""
    match value:
        case str():
            return plain(value)
        case list():
            return [_plain(item, plain) for item in value]
        case dict():
            return {plain(key): _plain(item, plain) for key, item in value.items()}
        case _:
            return value
