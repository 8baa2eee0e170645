"""Bodies of every kind against the engine: what passes the parser must not end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.sampler.engine import Engine, Request, open_engine
from components.sampler.server.wire import BadRequest, ModelLimits, parse_generate
from tests.sampler.test_engine import run

CONTEXT, VOCABULARY = 32, 96
NUMBERS: list[Any] = [
    *(-(10**30), -1, 0, 1, 2, CONTEXT - 3, CONTEXT, VOCABULARY - 1, VOCABULARY, 2**31 - 1, 2**31, 2**63 - 1, 2**63),
    *(2**64, 10**30, 10**400, int("9" * 4300), -1e308, -0.0, 1e-300, 1e-40, 1e-7, 0.009, 0.01, 0.5, 1.0, 1.5, 100.0),
    *(1e39, 1e308, float("inf"), float("-inf"), float("nan")),
]
"""At and far beyond every bound: of vocabulary, context, float32, int64, float, and what Python will spell."""

OTHERS: list[Any] = [None, True, "", "1", [], [[]], {}, {"a": 1}]
SAMPLING = [
    *("temperature", "top_p", "top_k", "max_new_tokens", "stop_token_ids", "sampling_seed", "ignore_eos", "n", "min_p"),
    *("min_new_tokens", "repetition_penalty", "stop", "logit_bias"),
]
FIELDS = [
    *("input_ids", "rid", "return_logprob", "logprob_start_len", "return_routed_experts", "routed_experts_start_len"),
    *("sampling_params", "top_logprobs_num", "token_ids_logprob"),
]


@pytest.fixture(scope="module")
def small(model_folder: Path) -> Engine:
    return open_engine(model_folder, slots=8, context=CONTEXT)


def requests(engine: Engine, body: Any) -> list[Request]:
    """What a body asks of the engine; nothing where it is refused in words."""
    limits = ModelLimits(engine.arch.vocab, engine.context, engine.arch.eos_ids)
    try:
        return [call.request for call in parse_generate(body, limits)[0]]
    except BadRequest as refusal:
        return [] if str(refusal) else pytest.fail(f"a refusal without words: {body}")


def test_no_value_of_any_field_ends_the_engine(small: Engine) -> None:
    # "top_k": 10**30 passed, and the engine's process ended.
    bare = {"input_ids": [1, 2, 3], "return_logprob": True, "sampling_params": {"max_new_tokens": 2}}
    values = [*NUMBERS, *OTHERS, *([number] for number in NUMBERS)]
    bodies = [{**bare, field: value} for field in FIELDS for value in values]
    sampled = [{"max_new_tokens": 2, name: value} for name in SAMPLING for value in values]
    bodies += [{**bare, "sampling_params": sampling} for sampling in sampled]
    bodies += [{**bare, "input_ids": [[1], value]} for value in values]
    asked = [request for body in bodies for request in requests(small, body)]
    assert len(bodies) > len(asked) > 100, "most are refused, some are run"
    for number, request in enumerate(asked):
        assert run(small, request).keys() == {request.rid}, f"request {number}: {request}"


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ({"temperature": 0}, (1.0, 1)),
        ({"temperature": 0.01}, (0.01, -1)),
        ({"temperature": 1e-7}, None),
        ({"temperature": 0.009}, None),
        ({"temperature": 101}, None),
        ({"top_k": VOCABULARY}, (1.0, VOCABULARY)),
        ({"top_k": 2**31}, None),
    ],
)
def test_what_is_next_to_greedy_or_too_large_is_refused(
    small: Engine, given: dict[str, float], drawn: tuple[float, int] | None
) -> None:
    # Below 1e-6 an answer was drawn greedily, with log-probs at temperature 1, and recorded as drawn at what was asked.
    asked = requests(small, {"input_ids": [1], "sampling_params": given | {"max_new_tokens": 1}})
    assert [(request.temperature, request.top_k) for request in asked] == ([] if drawn is None else [drawn])
