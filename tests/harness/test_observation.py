"""The byte limit of observations."""

import re

from hypothesis import given
from hypothesis import strategies as st

from components.harness import limit_output
from components.harness.observation import Lookout, as_text
from components.sandbox.pane import Pane


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


def test_new_output_begins_with_the_last_line_that_was_known():
    lookout = Lookout()
    assert lookout.new(["$", "", ""]) is None
    assert lookout.new(["$ ls", "a", "$"]) == "$ ls\na\n$\n"
    assert lookout.new(["$ ls", "a", "$ pwd", "/app", "$"]) == "\n$ pwd\n/app\n$\n"


def test_the_screen_is_shown_where_nothing_is_new_or_what_was_known_is_gone():
    lookout = Lookout()
    lookout.new(["$", ""])
    assert lookout.new(["editor", "~"]) is None
    assert lookout.new(["editor", "~"]) == "\n~\n"  # a prompt that did not move is told again
    assert Lookout("").new(["", ""]) is None


def test_a_history_that_lost_its_beginning_has_no_new_output_in_that_turn_only():
    lookout, pane = Lookout(), Pane(10, 60)
    seen = []
    for count in (1900, 50, 150, 20, 200):
        pane.feed(b"".join(b"%d of %d\r\n" % (number, count) for number in range(count)))
        seen.append(lookout.new(pane.lines()))
    assert [text is None for text in seen] == [True, False, True, False, True]
    assert seen[3].splitlines()[:3] == ["", "149 of 150", "0 of 20"]


def test_the_looked_at_rows_become_one_text():
    assert as_text(["a", ""]) == "a\n\n"
