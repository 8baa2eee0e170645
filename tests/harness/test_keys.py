"""Keystrokes as tmux takes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.harness.keys import NAMED, typed

TEXTS = ("ls\n", "C-c\n", "a", "é", "C-", "^", "M-", "Ctrl-C", "echo Enter", "F13")
CHORDS = (
    "C-c",
    "C-d",
    "C-C",
    "c-z",
    "^C",
    "C-[",
    "C-\\",
    "C-?",
    "C-@",
    "C-_",
    "C-m",
    "C-Space",
    "M-x",
    "M-Enter",
    "M-C-c",
)


def test_the_name_of_a_key_is_that_key_and_other_text_stays_as_it_is():
    assert [typed(keys) for keys in ("C-c", "^D", "enter", "Up", "M-x", "C-Space")] == [
        *("\x03", "\x04", "\r", "\x1b[A", "\x1bx", "\x00")
    ]
    for text in TEXTS:
        assert typed(text) == text


@given(st.text())
def test_a_text_with_more_than_a_key_s_name_is_typed_as_it_stands(text):
    assert typed(text + "\n") == text + "\n"


def test_every_key_is_what_tmux_sends(tmp_path: Path):
    if shutil.which("tmux") is None:
        pytest.skip("no tmux on this host")
    environment = {**os.environ, "TMUX_TMPDIR": str(tmp_path), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    read = tmp_path / "read"

    def tmux(*arguments: str) -> None:
        subprocess.run(["tmux", *arguments], env=environment, check=True)

    def arrived(size: int) -> bytes:
        for _ in range(3000):
            data = read.read_bytes() if read.is_file() else b""
            if len(data) >= size:
                return data
            time.sleep(0.02)
        return read.read_bytes()

    tmux("-f", "/dev/null", "new-session", "-d", f"stty raw -echo -isig; printf . > {read}; exec cat >> {read}")
    try:
        expected = b"."
        assert arrived(1) == expected
        for keys in (*NAMED, *CHORDS, *TEXTS):
            tmux("send-keys", "--", keys)
            expected += typed(keys).encode()
        assert arrived(len(expected)) == expected
    finally:
        tmux("kill-server")
