"""Bodies of every kind: each is read, or refused in OpenAI's words."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import RecordError
from components.gateway import ChatTemplate, Refusal
from components.gateway.request import READ, ROLES, read_object, read_request, read_sampling
from tests.gateway.parts import MODEL, QWENISH, TOOLS
from tests.harness.parts import ByteTokenizer

TEMPLATE = ChatTemplate(ByteTokenizer(), QWENISH)
TEXTS = ["", "x", "\ud800", "[" * 2_000, '{"a": "\\ud800"}', '{"a": [1]}', "<|im_end|>"]
NUMBERS = [0, 1, -1, 0.5, 1e-9, 2**31, 10**30, 10**400, 1e308, float("inf"), float("nan")]
SCALARS = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
WORDS = st.sampled_from(["type", "text", "function", "name", "arguments", "content", "role", "", "\udfff"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))
CALLS = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": VALUES, "arguments": SCALARS})})
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(list(ROLES)) | VALUES, "content": st.just("x") | VALUES},
    optional={"tool_calls": st.lists(CALLS | VALUES, max_size=2) | VALUES, "name": VALUES, "reasoning_content": VALUES},
)
OTHERS = {name: VALUES | st.just(TOOLS if name == "tools" else 1) for name in {*READ, "n", "stop", "min_p"}}
BODIES = st.fixed_dictionaries(
    {"model": st.just(MODEL), "messages": st.lists(MESSAGES | VALUES, min_size=1, max_size=3)},
    optional={name: value for name, value in sorted(OTHERS.items()) if name not in ("model", "messages")},
)


def told(refusal):
    """A refusal as its client gets it."""
    assert 400 <= refusal.status < 500
    assert json.loads(json.dumps(refusal.body()))["error"]["message"]


@settings(deadline=None, max_examples=60)
@given(body=BODIES | VALUES)
def test_any_json_is_read_or_refused(body):
    try:
        request = read_request(json.dumps(body).encode())
        read_sampling(request.sampling)
        ids = TEMPLATE.opening(request.messages, request.tools)
    except Refusal as refusal:
        told(refusal)
    except RecordError:
        pass  # the template's own refusal, of a system message that is not the first
    else:
        assert ids[-len("assistant\n") :] == list(b"assistant\n")


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(data):
    try:
        read_sampling(read_object(data))
    except Refusal as refusal:
        told(refusal)
