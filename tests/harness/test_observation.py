"""The byte limit of observations."""

import re

from hypothesis import given
from hypothesis import strategies as st

from components.harness import limit_output


def test_short_output_is_left_alone():
    assert limit_output("x" * 10_000) == "x" * 10_000


def test_long_output_keeps_head_and_tail_and_says_how_much_is_missing():
    limited = limit_output("a" * 6_000 + "b" * 6_000)
    assert limited == "a" * 5_000 + "\n[... 2000 bytes left out ...]\n" + "b" * 5_000


def test_the_limit_counts_bytes_and_never_cuts_a_character():
    limited = limit_output("é" * 100, 51)
    head, tail = re.split(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n", limited)
    assert head == tail == "é" * 12


@given(st.text(), st.integers(16, 200))
def test_kept_and_omitted_bytes_add_up(text, limit):
    data = text.encode("utf-8", "replace")
    limited = limit_output(text, limit, marker="\0{omitted}\0")
    if len(data) <= limit:
        assert limited == text
        return
    head, omitted, tail = re.fullmatch("(.*)\0(\\d+)\0(.*)", limited, re.DOTALL).groups()
    assert len(head.encode()) + int(omitted) + len(tail.encode()) == len(data)
    assert len(head.encode()) + len(tail.encode()) <= limit
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
