"""Aborted answers are continued where that is right, and dropped where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from components.sampler import Generation
from components.sampler.fleet.partial import joined, kept, routing_start_after

PROMPT = 5
WHOLE = np.arange(100, 120, dtype=np.int32)
ROWS = np.arange((PROMPT + len(WHOLE)) * 2, dtype=np.uint8).reshape(-1, 1, 2)
"""Of every position of the whole stream; row j is told from every other."""


def piece(begin: int, end: int, start: int | None, *, version: int = 3, finish: str = "abort") -> Generation:
    """Ids [begin, end) of the whole, with the rows that a server returns that was asked from `start` on."""
    routing = None if start is None else ROWS[start : PROMPT + end - 1]
    logprobs = -WHOLE[begin:end].astype(np.float32)
    return Generation(WHOLE[begin:end], logprobs, routing, start or 0, finish, version, cached_tokens=begin)


@given(
    cuts=st.lists(st.tuples(st.integers(0, 19), st.booleans()), max_size=3),
    asked=st.none() | st.integers(0, PROMPT),
)
def test_an_answer_in_pieces_is_the_answer_in_one(cuts: list[tuple[int, bool]], asked: int | None) -> None:
    pieces: tuple[Generation, ...] = ()
    begin = 0
    for end, captured in sorted(cuts):
        start = routing_start_after(PROMPT, asked, pieces)
        drawn = piece(begin, end, start if captured and end > begin else None)
        pieces, begin = kept(pieces, drawn), end
    start = routing_start_after(PROMPT, asked, pieces)
    answer = joined(pieces, piece(begin, len(WHOLE), start, finish="length"))
    assert answer is not None
    np.testing.assert_array_equal(answer.output_ids, WHOLE)
    np.testing.assert_array_equal(answer.logprobs, -WHOLE)
    assert answer.finish_reason == "length"
    if asked is None:
        assert answer.routing is None
    else:
        assert answer.routing_start == asked
        np.testing.assert_array_equal(answer.routing, ROWS[asked : PROMPT + len(WHOLE) - 1])


def test_what_other_weights_drew_is_dropped() -> None:
    old = piece(0, 4, 0)
    assert kept((old,), piece(4, 9, 8, version=4)) == ()
    assert joined((old,), piece(4, 20, 8, version=4, finish="length")) is None
    assert kept((), replace(old, output_ids=WHOLE[:0], logprobs=np.zeros(0, np.float32), routing=None)) == ()
