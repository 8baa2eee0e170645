"""Our bodies and answers against the protocol types that SGLang 0.5.23 ships, where that wheel is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from components.records import Sampling
from components.sampler.client import _generate_body
from components.sampler.engine import Answer
from components.sampler.server.wire import ModelLimits, parse_generate, render_answer

LIMITS = ModelLimits(vocab=100, context=64, eos_ids=frozenset([1]))


@pytest.fixture(scope="module")
def api_types() -> ModuleType:
    pytest.importorskip("msgspec")
    found = importlib.util.find_spec("sglang")
    path = Path(next(iter(found.submodule_search_locations or []))) / "api/v1/api_types.py" if found else None
    if path is None or not path.is_file():
        pytest.skip("sglang with api/v1/api_types.py is not installed")
    # By path: importing the package would need its whole GPU stack.
    spec = importlib.util.spec_from_file_location("sglang_api_types", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_the_client_sends_is_accepted(api_types: ModuleType) -> None:
    body = _generate_body([1, 2, 3], Sampling(), 4, [2], 0)
    assert api_types.GenerateRequest.from_json_value(body).input_ids is not None


def test_what_the_server_answers_is_accepted(api_types: ModuleType) -> None:
    body = _generate_body([1, 2, 3], Sampling(), 2, [2], 0)
    (call,), _ = parse_generate(body, LIMITS)
    answer = Answer(
        request=call.request,
        output_ids=np.array([4, 5], dtype=np.int32),
        logprobs=np.array([-1, -2], dtype=np.float32),
        routing=np.zeros((4, 2, 2), dtype=np.uint8),
        finish={"type": "length", "length": 2},
        cached_tokens=0,
        input_logprobs=None,
    )
    rendered = render_answer(call, answer, "3", 0.1)
    assert api_types.GenerateResponse.from_json_value(rendered) is not None


def test_the_server_accepts_what_the_client_sends() -> None:
    ((call,), batched) = parse_generate(_generate_body([1, 2, 3], Sampling(0.5, 0.9, 20), 4, [2], 3), LIMITS)
    assert not batched
    assert call.routing_start == 3
    request = call.request
    assert (request.temperature, request.top_p, request.top_k, request.max_new_tokens) == (0.5, 0.9, 20, 4)
    assert request.stop_ids == {1, 2}, "end of sequence stops too"
