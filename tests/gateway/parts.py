"""A sampler without a model, and a template in the manner of a model family, for tests of the gateway alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np

from components.gateway import ChatTemplate, Gateway, Routes, SamplerPolicy, Trajectory, serving
from components.gateway.template import END
from components.sampler import Generation
from tests.harness.parts import SPECIALS, ByteTokenizer

QWENISH = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- if not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}
{{- '<|im_start|>system\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{%- set content = message.content %}
{%- if message.role == 'assistant' %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""A template in the manner of the Qwen family: reasoning is dropped from history, tool results are joined."""


class StubSampler:
    """Answers with given texts, then with "ok". Routing row j names j, so that a misplaced row shows."""

    def __init__(self, *texts: str, **changes: Any) -> None:
        self.texts = list(texts)
        self.changes = changes
        self.calls: list[tuple[list[int], dict[str, Any]]] = []
        self.held = asyncio.Event()
        self.held.set()
        self.cancelled = 0

    async def healthy(self) -> bool:
        return not self.changes

    async def generate(self, prompt_ids: Sequence[int], **call: Any) -> Generation:
        self.calls.append((list(prompt_ids), call))
        text = self.texts.pop(0) if self.texts else "ok"
        try:
            await self.held.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        whole = [*ByteTokenizer().encode(text), SPECIALS[END]]
        ids = whole[: call["max_new_tokens"]]
        start = call["routing_start"]
        rows = None
        if start is not None:
            rows = np.arange(start, len(prompt_ids) + len(ids) - 1, dtype=np.uint16).reshape(-1, 1, 1)
        fields = {
            "output_ids": np.asarray(ids, np.int32),
            "logprobs": -np.arange(1, len(ids) + 1, dtype=np.float32),
            "routing": rows,
            "routing_start": start or 0,
            "finish_reason": "stop" if len(ids) == len(whole) else "length",
            "weight_version": 4,
            "cached_tokens": 0,
        }
        return Generation(**(fields | self.changes))


def trajectory_of(
    sampler: Any,
    *,
    capture: bool = True,
    source: str = QWENISH,
    version: Callable[[], int] | None = None,
    **settings: Any,
) -> Trajectory:
    """A trajectory in bytes that draws from `sampler`."""
    template = ChatTemplate(ByteTokenizer(), source)
    policy = SamplerPolicy(
        sampler, stop_token_ids=template.stop_token_ids, session_id="t", capture=capture, version=version
    )
    return Trajectory(policy, template, **settings)


MODEL = "tiny"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@asynccontextmanager
async def open_gateway(
    sampler: Any, *, context: int = 400, keepalive_s: float = 5.0, **settings: Any
) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    """A gateway in bytes on a free port, and a client whose paths are relative to it. Trial `t` is open."""
    template = ChatTemplate(ByteTokenizer(), settings.pop("source", QWENISH))
    gateway = Gateway(sampler, template, model=MODEL, context_tokens=context, **settings)
    gateway.open("t")
    async with serving(Routes(gateway, keepalive_s=keepalive_s)) as url, aiohttp.ClientSession(url) as client:
        yield gateway, client


def body(*messages: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    """A request; a string is a user message."""
    said = [{"role": "user", "content": item} if isinstance(item, str) else item for item in messages]
    return {"model": MODEL, "messages": said, **fields}
