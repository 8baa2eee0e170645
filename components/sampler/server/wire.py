"""SGLang's native `/generate` body and answer: parsing, checking, rendering. Pure.

Invariant: a request that passes is one the engine can run. Fields that SGLang knows and the engine does not implement
are refused unless they hold their neutral value; unknown sampling keys are refused, unknown top-level keys ignored, as
SGLang 0.5.23 does.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from components.bounds import LEAST_TEMPERATURE, MOST_TEMPERATURE, MOST_TOP_K
from components.records import Int32
from components.sampler.engine import Answer, Request
from components.sampler.protocol import GroupAddress, TensorSpec

# Sampling keys that are accepted at these values only.
_NEUTRAL_SAMPLING: dict[str, tuple[Any, ...]] = {
    "min_p": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_new_tokens": (0,),
    "n": (1,),
    "stop": ([], ""),
    "stop_regex": ([], ""),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "logit_bias": ({},),
    "custom_params": (),
}
# Sampling keys that act on text only, of which this server returns none.
_TEXT_SAMPLING = {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval"}
_SAMPLING = {
    "max_new_tokens", "temperature", "top_p", "top_k", "stop_token_ids", "ignore_eos", "sampling_seed",
}  # fmt: skip
# Top-level fields that would change the answer and are not implemented; falsy values are neutral.
_UNSUPPORTED = (
    "text", "input_embeds", "image_data", "stream", "top_logprobs_num", "token_ids_logprob", "return_hidden_states",
    "return_indexer_topk", "return_entropy", "return_sampling_mask", "session_params", "lora_path", "lora_id",
    "custom_logit_processor",
)  # fmt: skip
_DEFAULT_NEW_TOKENS = 128
_LARGEST = 2**63 - 1
"""Of an integer that has no bound of its own: what the engine's arrays hold. JSON has no bound, and the message of a
refusal could not even spell what is long enough."""


class BadRequest(ValueError):
    """The body cannot be served; its text is the message of the HTTP 400."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request is checked against."""

    vocab: int
    context: int
    eos_ids: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One sequence of a `/generate` body, and which parts of its answer were asked for."""

    request: Request
    logprobs: bool
    routing_start: int | None


def parse_generate(body: Any, limits: ModelLimits) -> tuple[list[Call], bool]:
    """Reads a `/generate` body. Returns its sequences, and whether they came as a batch.

    Raises:
        BadRequest: says what is wrong.
    """
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for key in _UNSUPPORTED:
        if body.get(key):
            raise BadRequest(f"{key} is not supported by the embedded server")
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not ids:
        raise BadRequest("input_ids must be a list of token ids that is not empty")
    batched = isinstance(ids[0], list)
    if not batched:
        return [_parse_one(body, ids, limits)], False
    rows = [{key: _item(body, key, i, len(ids)) for key in body} for i in range(len(ids))]
    return [_parse_one(row, row["input_ids"], limits) for row in rows], True


def render_answer(call: Call, answer: Answer, version: str, latency_s: float) -> dict[str, Any]:
    """One element of the response, in SGLang's shape."""
    request, drawn = call.request, answer.output_ids.tolist()
    meta: dict[str, Any] = {"id": request.rid, "finish_reason": answer.finish, "weight_version": version}
    meta["completion_tokens"] = len(drawn)
    meta["e2e_latency"] = latency_s
    if answer.cached_tokens is not None:
        meta["prompt_tokens"] = len(request.prompt)
        meta["cached_tokens"] = answer.cached_tokens
    if call.logprobs:
        pairs = zip(answer.logprobs.tolist(), drawn, strict=True)
        meta["output_token_logprobs"] = [(logprob, token, None) for logprob, token in pairs]
        meta["output_token_logprobs_length"] = len(drawn)
        meta["input_token_logprobs"] = _input_logprobs(answer)
    if call.routing_start is not None and answer.routing is not None:
        rows = np.ascontiguousarray(answer.routing[call.routing_start :], dtype="<i4")
        meta["routed_experts"] = base64.b64encode(rows.tobytes()).decode("ascii")
    return {"text": "", "output_ids": drawn, "meta_info": meta}


def parse_group(body: Mapping[str, Any]) -> tuple[GroupAddress, int]:
    """Reads an `/init_weights_update_group` body: the group, and this server's rank in it.

    Raises:
        BadRequest: says what is wrong.
    """
    backend = body.get("backend", "nccl")
    if backend != "gloo":
        raise BadRequest(f"backend must be gloo for the embedded server, got {backend!r}")
    size = _integer(body, "world_size", 0, 2)
    address = GroupAddress(
        name=_text(body, "group_name"),
        host=_text(body, "master_address"),
        port=_integer(body, "master_port", 0, 1, 65_535),
        world_size=size,
        backend=backend,
    )
    return address, _integer(body, "rank_offset", 0, 1, size - 1)


def parse_delivery(body: Mapping[str, Any]) -> tuple[list[TensorSpec], str, str | None]:
    """Reads an `/update_weights_from_distributed` body: what arrives, through which group, under which version.

    Raises:
        BadRequest: says what is wrong.
    """
    names, dtypes, shapes = (body.get(key) for key in ("names", "dtypes", "shapes"))
    if not (isinstance(names, list) and isinstance(dtypes, list) and isinstance(shapes, list)):
        raise BadRequest("names, dtypes and shapes must be lists")
    if not len(names) == len(dtypes) == len(shapes):
        raise BadRequest(f"names, dtypes and shapes have {len(names)}, {len(dtypes)} and {len(shapes)} entries")
    if not all(isinstance(text, str) for text in [*names, *dtypes]):
        raise BadRequest("names and dtypes must be strings")
    sizes = [tuple(_token_ids(shape, "shapes")) for shape in shapes]
    if any(size < 0 for shape in sizes for size in shape):
        raise BadRequest("shapes must not be negative")
    version = None if body.get("weight_version") is None else _text(body, "weight_version")
    specs = [TensorSpec(*parts) for parts in zip(names, dtypes, sizes, strict=True)]
    return specs, _text(body, "group_name"), version


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{key} must be a string that is not empty")
    return value


def _item(body: Mapping[str, Any], key: str, index: int, count: int) -> Any:
    """The value of a field for one sequence of a batch: lists are per sequence, other values are shared."""
    value = body[key]
    if not isinstance(value, list):
        if key == "rid" and value is not None:
            raise BadRequest("rid must be a list for a batch")
        return value
    if len(value) != count:
        raise BadRequest(f"{key} has {len(value)} entries for {count} sequences")
    return value[index]


def _parse_one(body: Mapping[str, Any], ids: Any, limits: ModelLimits) -> Call:
    prompt = _prompt(ids, limits.vocab)
    rid = body.get("rid")
    if rid is not None and (not isinstance(rid, str) or not rid):
        raise BadRequest("rid must be a string that is not empty")
    logprobs = _flag(body, "return_logprob")
    start = _integer(body, "logprob_start_len", -1, -1, len(prompt) - 1)
    routing_start = _integer(body, "routed_experts_start_len", 0, 0, len(prompt))
    request = _with_sampling(
        body.get("sampling_params"),
        rid or uuid.uuid4().hex,
        prompt,
        limits,
        start if logprobs and start >= 0 else None,
    )
    return Call(request, logprobs, routing_start if _flag(body, "return_routed_experts") else None)


def _with_sampling(
    params: Any, rid: str, prompt: Int32, limits: ModelLimits, input_logprobs_from: int | None
) -> Request:
    params = {} if params is None else params
    if not isinstance(params, dict):
        raise BadRequest("sampling_params must be an object")
    _refuse_unknown(params)
    temperature = _number(params, "temperature", 1.0, 0.0, MOST_TEMPERATURE)
    greedy = temperature == 0
    if not greedy and temperature < LEAST_TEMPERATURE:
        raise BadRequest(f"temperature must be 0 (greedy) or at least {LEAST_TEMPERATURE}, got {temperature}")
    top_p = _number(params, "top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise BadRequest("top_p must be in (0, 1], got 0")
    top_k = _integer(params, "top_k", -1, -1, MOST_TOP_K)
    if top_k == 0:
        raise BadRequest("top_k must be -1 (disable) or at least 1, got 0")
    new_tokens = _integer(params, "max_new_tokens", _DEFAULT_NEW_TOKENS, 1)
    total = len(prompt) + new_tokens
    if total > limits.context:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {limits.context} tokens: "
            f"{len(prompt)} prompt tokens and {new_tokens} new tokens make {total}."
        )
    stops = _token_ids(params.get("stop_token_ids") or [], "stop_token_ids")
    ignore_eos = _flag(params, "ignore_eos")
    return Request(
        rid=rid,
        prompt=prompt,
        max_new_tokens=new_tokens,
        temperature=1.0 if greedy else temperature,
        top_p=1.0 if greedy else top_p,
        top_k=1 if greedy else top_k,
        # As in SGLang, ignore_eos ignores the stop ids of the request too.
        stop_ids=frozenset() if ignore_eos else limits.eos_ids.union(stops),
        seed=None if params.get("sampling_seed") is None else _integer(params, "sampling_seed", 0, 0),
        input_logprobs_from=input_logprobs_from,
    )


def _refuse_unknown(params: Mapping[str, Any]) -> None:
    known = _SAMPLING | _TEXT_SAMPLING | _NEUTRAL_SAMPLING.keys()
    unknown = sorted(params.keys() - known)
    if unknown:
        raise BadRequest(f"unknown sampling_params {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    for key, neutral in _NEUTRAL_SAMPLING.items():
        if params.get(key) is not None and params[key] not in neutral:
            raise BadRequest(f"sampling_params.{key} is not supported by the embedded server")


def _prompt(ids: Any, vocab: int) -> Int32:
    values = _token_ids(ids, "input_ids")
    if not values:
        raise BadRequest("input_ids must not be empty")
    low, high = min(values), max(values)
    if low < 0 or high >= vocab:
        raise BadRequest(f"input_ids must be in [0, {vocab}), got {low if low < 0 else high}")
    return np.array(values, dtype=np.int32)


def _token_ids(value: Any, name: str) -> list[int]:
    # `type(...) is int`, since a bool is an int to isinstance.
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise BadRequest(f"{name} must be a list of integers")
    return value


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadRequest(f"{key} must be a boolean, got {value!r}")
    return value


def _integer(body: Mapping[str, Any], key: str, default: int, low: int, high: int = _LARGEST) -> int:
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"{key} must be an integer in [{low}, {high}], got {value!r}")
    return value


def _number(body: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if type(value) not in (int, float) or not low <= value <= high:
        raise BadRequest(f"{key} must be a number in [{low}, {high}], got {value!r}")
    return float(value)


def _input_logprobs(answer: Answer) -> Sequence[tuple[float | None, int, None]]:
    """Log-probs of the prompt from the asked position on; the first has nothing before it and is null."""
    if answer.input_logprobs is None:
        return []
    start = answer.request.input_logprobs_from
    tokens = answer.request.prompt[start:].tolist()
    values: list[float | None] = [None, *answer.input_logprobs.tolist()]
    # An abort in the middle of the prompt leaves fewer values than tokens.
    return [(value, token, None) for value, token in zip(values, tokens, strict=False)]
