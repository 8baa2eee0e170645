"""Pure functions between a program's bytes and what a model reads."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.sandbox.screen import plain, render, split_incomplete, without_alternate
from components.sandbox.zygote.headtail import HeadTail

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.sampled_from(
            [
                b"\x1b[>4;2m",
                b"\x1b[?1049h",
                b"\x1b[3;4H",
                b"\x1b[1;2;3;4A",
                b"\x1b]0;t\x07",
                b"\x1bP+q\x1b\\",
                b"\x1b(0",
                b"\r",
                b"\b",
                b"\x1b[",
            ]
        ),
    ),
    max_size=40,
).map(b"".join)


@given(PIECES)
@example(
    b" \xe3\x80\x80                  \x1b[1;2;3;4A "
)  # half of a wide character, which is where pyte's own crashes
@settings(max_examples=150, deadline=None)
def test_no_bytes_crash_the_screen_or_the_stripper(data: bytes) -> None:
    assert len(render(data, 10, 20).splitlines()) <= 10
    assert "\x1b" not in plain(data.decode(errors="replace"))


@given(PIECES, st.lists(st.integers(0, 200), max_size=5))
@settings(max_examples=150, deadline=None)
def test_splitting_loses_and_reorders_nothing(data: bytes, cuts: list[int]) -> None:
    out, rest, start = b"", b"", 0
    for cut in [*sorted(cuts), len(data)]:
        complete, rest = split_incomplete(rest + data[start:cut])
        out += complete
        start = max(start, cut)
    assert out + rest == data


def test_sequences_cut_in_two_are_joined() -> None:
    for text in ("a\x1b[31mb", "é€😀", "x\x1b]777;k;1\x07y"):
        data = text.encode()
        for cut in range(len(data)):
            first, rest = split_incomplete(data[:cut])
            second, last = split_incomplete(rest + data[cut:])
            assert plain(first.decode()) + plain(second.decode()) == plain(text)
            assert last == b""


def test_carriage_returns_and_backspaces_overwrite() -> None:
    assert plain("10%\r100%\r\nab\b\bxy\r\n") == "100%\nxy\n"
    assert plain("long line\rshort\n") == "shortline\n"


def test_what_was_drawn_on_the_alternate_screen_is_dropped() -> None:
    assert without_alternate("a\x1b[?1049hdrawn\x1b[?1049lb", began_inside=False) == "ab"
    assert without_alternate("drawn\x1b[?1049lb", began_inside=True) == "b"


@given(st.lists(st.binary(max_size=3000), max_size=30), st.integers(16, 4000))
@settings(max_examples=100, deadline=None)
def test_capture_is_exact_below_its_bound_and_keeps_both_ends_above(parts: list[bytes], limit: int) -> None:
    kept = HeadTail(limit)
    for part in parts:
        kept.add(part)
    whole = b"".join(parts)
    contents = kept.contents()
    if len(whole) <= limit:
        assert (contents, kept.dropped) == (whole, 0)
    else:
        assert contents.startswith(whole[: limit - limit // 2])
        assert contents.endswith(whole[len(whole) - limit // 2 :])
        assert kept.dropped == len(whole) - limit
