"""Job logs arrive in pieces, sometimes twice, and come out as lines with levels."""

from __future__ import annotations

import itertools
import logging

from hypothesis import given
from hypothesis import strategies as st

from components.joblog import LineReader

LOG = "INFO a\nplain\n2026-01-01 WARNING b\n  more of b\nTraceback (most recent call last):\n  File\nINFO ende"


def read(pieces: list[tuple[str, int]]) -> list[tuple[int, str]]:
    reader = LineReader()
    lines = [line for text, start in pieces for line in reader.feed(text, start)]
    return [(line.level, line.text) for line in [*lines, *reader.flush()]]


def test_a_line_without_a_level_has_that_of_the_line_before() -> None:
    levels = [level for level, _ in read([(LOG, 0)])]
    assert levels == [
        *[logging.INFO] * 2,
        *[logging.WARNING] * 2,
        *[logging.ERROR] * 2,
        logging.INFO,
    ]


@given(st.lists(st.integers(0, len(LOG)), max_size=8), st.lists(st.integers(0, len(LOG)), max_size=3))
def test_however_the_log_is_cut_and_replayed_every_line_comes_once(cuts: list[int], replays: list[int]) -> None:
    edges = [0, *sorted(cuts), len(LOG)]
    pieces = [(LOG[a:b], a) for a, b in itertools.pairwise(edges)]
    for end in replays:  # The stream drops and starts again from the beginning of the log.
        pieces.insert(min(end, len(pieces)), (LOG[: pieces[min(end, len(pieces) - 1)][1]], 0))
    assert read(pieces) == read([(LOG, 0)])
