"""Job logs arrive in pieces, sometimes twice, and come out as lines with levels."""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.joblog import Hearing, LineReader, about, begin, say

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


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where this process's log goes meanwhile."""
    root, made = logging.getLogger(), io.StringIO()
    before, level = list(root.handlers), root.level
    root.handlers.clear()  # Not closed: they are pytest's.
    begin(made)
    yield made
    root.handlers[:] = before
    root.setLevel(level)


def test_lines_end_with_the_step_and_the_trial_that_they_are_about(stream: io.StringIO) -> None:
    log = logging.getLogger("longshell")

    async def trial(name: str) -> None:
        with about(trial=name):
            await asyncio.sleep(0)  # The other one runs meanwhile.
            log.warning("late")

    async def both() -> None:
        await asyncio.gather(trial("a"), trial("b"))

    with about(step=3):
        log.info("begins")
        asyncio.run(both())
    log.error("ends")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "INFO begins [step=3]"
    assert sorted(lines[1:3]) == ["WARNING late [step=3 trial=a]", "WARNING late [step=3 trial=b]"]
    assert lines[3] == "ERROR ends"
    assert [level for level, _ in read([(stream.getvalue(), 0)])] == [20, 30, 30, 40]


def test_what_another_process_said_is_told_once_with_its_level_and_its_own_ids(stream: io.StringIO) -> None:
    log, heard = logging.getLogger("longshell"), Hearing()
    there = logging.getLogger("elsewhere")
    there.propagate = False
    there.addHandler(heard)
    with about(step=4, trial="a"):
        there.warning("no verdict, %s", "sampler: gone")
    there.debug("nothing for people")
    with about(step=3):
        say(log, heard.take())
        say(log, heard.take())
    assert stream.getvalue() == "WARNING no verdict, sampler: gone [step=4 trial=a]\n"
    for number in range(3_000):
        there.error("%d", number)
    assert [line.text for line in heard.take()][-1] == "2999"
    assert heard.take() == []
