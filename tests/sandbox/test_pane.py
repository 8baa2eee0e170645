"""A pane scrolls, wraps and clears as tmux's does."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.sandbox.pane import HISTORY_LINES, Pane

ROWS, COLUMNS = 10, 60


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"line %d\r\n" % number for number in range(start, end))


def pane(*pieces: bytes) -> Pane:
    made = Pane(ROWS, COLUMNS)
    for piece in pieces:
        made.feed(piece)
    return made


def test_what_scrolls_off_is_kept_and_a_full_history_loses_a_tenth_at_once() -> None:
    lines = pane(numbered(0, HISTORY_LINES + ROWS - 1)).lines()
    assert (lines[0], lines[-2:]) == ("line 0", (f"line {HISTORY_LINES + ROWS - 2}", ""))
    assert len(lines) == HISTORY_LINES + ROWS
    lines = pane(numbered(0, HISTORY_LINES + ROWS)).lines()
    assert lines[0] == f"line {HISTORY_LINES // 10}"
    assert len(lines) == HISTORY_LINES * 9 // 10 + 1 + ROWS


def test_a_long_line_takes_rows_and_blanks_at_the_end_of_one_are_not_captured() -> None:
    assert pane(b"x" * 150 + b"\r\nab   ").lines()[:4] == ("x" * 60, "x" * 60, "x" * 30, "ab")


def test_clearing_a_screen_scrolls_it_off_and_clearing_the_saved_lines_forgets_them() -> None:
    cleared = pane(b"one\r\ntwo\r\n", b"\x1b[H\x1b[J$ ")
    assert cleared.lines() == ("one", "two", "$", *[""] * (ROWS - 1))
    cleared.feed(b"\x1b[3J")
    assert cleared.lines() == ("$", *[""] * (ROWS - 1))


def test_an_alternate_screen_stands_in_place_and_none_of_it_scrolls_off() -> None:
    editor = pane(numbered(0, 20), b"\x1b[?1049h\x1b[H" + b"~\r\n" * 30)
    assert editor.lines() == (*[f"line {number}" for number in range(11)], *["~"] * 9, "")
    editor.feed(b"\x1b[?1049l$ ")
    assert editor.lines() == (*[f"line {number}" for number in range(20)], "$")


def test_a_switch_that_was_not_kept_is_made_up_for() -> None:
    editor = pane(b"before", b"\x1b[?1049hdrawn")
    editor.show_alternate(False)
    assert editor.lines()[0] == "before"


def test_an_unshown_character_does_not_hide_what_follows_it() -> None:
    assert pane("a\u200bb\x01c\x85d 日本 é\u0301".encode()).lines()[0] == "abcd 日本 é\u0301"


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[2J", b"\x1b[3;6r", b"\x1bc"]),
        ),
        max_size=30,
    )
)
@settings(max_examples=100, deadline=None)
def test_no_bytes_break_a_pane_however_they_are_cut(pieces: list[bytes]) -> None:
    lines = pane(*pieces).lines()
    assert len(lines) >= ROWS
    assert lines == pane(b"".join(pieces)).lines()
    assert all("\x1b" not in line and "\n" not in line for line in lines)


STREAMS = {
    "lines": [b"$ ", b"ls\r\na b\r\n$ "],
    "history": [numbered(0, 5), numbered(5, 1990), numbered(1990, 2050), numbered(2050, 2100), numbered(2100, 5000)],
    "long lines": [b"x" * 150 + b"\r\n", b"y" * 60, b"z", b"\r\n$ " + b"w" * 700],
    "clear": [
        numbered(0, 5),
        b"\x1b[H\x1b[J$ ",
        numbered(0, 30),
        b"\x1b[H\x1b[2J\x1b[3J$ ",
        b"a\r\n\x1b[2Jb",
        b"\x1bcc",
    ],
    "editor": [
        numbered(0, 25),
        b"\x1b[?1049h\x1b[H\x1b[2J~\r\n~",
        b"\x1b[5;3Hhi" + b"\r\n" * 8,
        b"\x1b[?1049l\rback\r\n$ ",
    ],
    "wide": ["日本語テキスト\r\n".encode() * 3, "é\u0301x\r\n".encode() * 20],
    "region": [numbered(0, 12), b"\x1b[3;6r\x1b[6;1H\r\nA\r\nB\r\nC", b"\x1b[r\x1b[10;1H\r\n\r\nend"],
    "overwriting": [b"10%\r50%\r100%\r\nab\b\bxy\r\n", b"\ttab\tx\r\n", b"\x1b[2K\x1b[A\x1b[Kup\r\n\r\n"],
    "control characters": [b"abc\r\n", bytes([0, 1, 2, 7, 0x1A]) + b"x\r\n"],
}


@pytest.mark.parametrize("name", STREAMS)
async def test_the_same_bytes_look_in_a_pane_as_tmux_captures_them(name: str, tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux on this host")
    environment = {**os.environ, "TMUX_TMPDIR": str(tmp_path), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}

    def tmux(*arguments: str) -> str:
        done = subprocess.run(["tmux", *arguments], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    fifo = tmp_path / "bytes"
    os.mkfifo(fifo)
    show = f"stty raw -echo; cat {fifo}; sleep 60"
    tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), show)
    try:
        ours = Pane(ROWS, COLUMNS)
        with open(fifo, "wb", buffering=0) as stream:
            for piece in STREAMS[name]:
                stream.write(piece)
                ours.feed(piece)
                expected = "".join(f"{line}\n" for line in ours.lines())
                for _ in range(1200):
                    captured = tmux("capture-pane", "-p", "-S", "-")
                    if captured == expected:
                        break
                    await asyncio.sleep(0.05)
                assert captured == expected
    finally:
        tmux("kill-server")
