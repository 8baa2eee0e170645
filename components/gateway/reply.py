"""Answers as OpenAI's API and vLLM's extensions of it write them. Pure.

`prompt_token_ids`, `choices[0].token_ids` and `choices[0].routed_experts` are in a reply when they were asked for
(`return_token_ids`, `return_routed_experts`): they grow with the conversation, and the recorder has them anyway.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator
from typing import Any

from components.gateway.message import Message
from components.gateway.request import ChatRequest
from components.gateway.trajectory import Answer
from components.records import Routing, Sample, Turn
from components.routing import encode
from components.tito import DriftReport, Tokenizer


def completion(answer: Answer, request: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    """The reply to a request that does not stream."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "refusal": None, **_parts(answer.message)},
        "finish_reason": _finish(answer),
        **_extras(answer, request, tokenizer),
    }
    return {**_head(answer, request, "chat.completion"), "choices": [choice], "usage": _usage(answer.turn)}


def chunks(answer: Answer, request: ChatRequest, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The reply to a request that streams: role, reasoning, content, calls, end, and usage if it was asked for."""
    head = _head(answer, request, "chat.completion.chunk")
    ids = {"prompt_token_ids": head.pop("prompt_token_ids")} if request.token_ids else {}
    parts = _parts(answer.message)
    for index, call in enumerate(parts.get("tool_calls", ())):
        call["index"] = index
    deltas = [{"role": "assistant", "content": ""}, *({name: value} for name, value in parts.items() if value)]
    for number, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        yield {**head, **(ids if number == 0 else {}), "choices": [choice]}
    end = {"index": 0, "delta": {}, "finish_reason": _finish(answer), **_extras(answer, request, tokenizer)}
    yield {**head, "choices": [end]}
    if request.include_usage:
        yield {**head, "choices": [], "usage": _usage(answer.turn)}


def samples_body(trial_id: str, samples: list[Sample], report: DriftReport) -> dict[str, Any]:
    """The training streams of a trial, and what the auditor found in them. A share of nothing is null."""
    shares = {"drift": report.drift, "reencoded_context": report.reencoded_context} if report.loss_tokens else {}
    return {
        "trial_id": trial_id,
        "samples": [
            {
                "chunk": sample.chunk,
                "tokens": sample.tokens.tolist(),
                "loss_mask": sample.loss_mask.astype(int).tolist(),
                "logprobs": sample.logprobs.tolist(),
                "routed_experts": _experts(sample.routing),
                "weight_version": sample.weight_version,
                "boundaries": dict(sample.boundaries),
            }
            for sample in samples
        ],
        "audit": {"clean": report.clean, "drift": None, "reencoded_context": None, **shares},
    }


def _head(answer: Answer, request: ChatRequest, kind: str) -> dict[str, Any]:
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": f"weights-{answer.turn.weight_version}",
    }
    return head | ({"prompt_token_ids": answer.turn.prompt_ids.tolist()} if request.token_ids else {})


def _parts(message: Message) -> dict[str, Any]:
    """Content, reasoning and calls of a message. Beside calls, empty content is null."""
    calls = [
        {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in message.calls
    ]
    parts: dict[str, Any] = {"reasoning_content": message.reasoning} if message.reasoning else {}
    parts["content"] = message.content or (None if calls else "")
    return parts | ({"tool_calls": calls} if calls else {})


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.message.calls else answer.turn.finish_reason


def _extras(answer: Answer, request: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    turn = answer.turn
    extras: dict[str, Any] = {"logprobs": _logprobs(turn, tokenizer) if request.logprobs else None}
    if request.token_ids:
        extras["token_ids"] = turn.completion_ids.tolist()
    if request.routed_experts:
        extras["routed_experts"] = _experts(turn.routing)
    return extras


def _logprobs(turn: Turn, tokenizer: Tokenizer) -> dict[str, Any]:
    content = []
    for token, logprob in zip(turn.completion_ids.tolist(), turn.logprobs.tolist(), strict=True):
        text = tokenizer.decode([token])
        whole = list(text.encode()) if "\N{REPLACEMENT CHARACTER}" not in text else None
        content.append({"token": text, "logprob": logprob, "bytes": whole, "top_logprobs": []})
    return {"content": content, "refusal": None}


def _experts(routing: Routing | None) -> dict[str, Any] | None:
    """Base64 of `components.routing.encode`, and the shape [rows, layers, experts]."""
    if routing is None:
        return None
    return {"data": base64.b64encode(encode(routing)).decode("ascii"), "shape": list(routing.shape)}


def _usage(turn: Turn) -> dict[str, int]:
    prompt, answer = len(turn.prompt_ids), len(turn.completion_ids)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
