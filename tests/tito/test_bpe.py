"""The tokenizer of a model folder: long texts, and how short ids can make a text."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from components.tito.bpe import LONG
from tests.rejection.parts import tokenizer

TOKENIZER = tokenizer()


def test_a_long_text_has_the_ids_and_spans_of_a_short_one() -> None:
    line = "say é banana, done 🦆\n"
    ids, spans = TOKENIZER.encode_with_offsets(line)
    count = LONG // len(line) + 2
    assert TOKENIZER.encode(line * count) == ids * count
    long, moved = TOKENIZER.encode_with_offsets(line * count)
    assert long == ids * count
    at = (count - 1) * len(line)
    assert moved[-len(spans) :] == [(start + at, end + at) for start, end in spans]


def test_a_long_text_does_not_hold_up_the_other_threads() -> None:
    # Encoding one text keeps the interpreter's lock: a thread for it did not free the event loop.
    text = "echo banana done " * 10_000
    encoding = threading.Thread(target=TOKENIZER.encode, args=(text,))
    encoding.start()
    turns = 0
    while encoding.is_alive():
        encoding.join(0.001)
        turns += 1
    assert turns > 10


@given(st.text() | st.lists(st.sampled_from([" a", "done", "echo", "<|im_start|>", "🦆"])).map("".join))
def test_no_text_has_fewer_ids_than_its_bytes_and_the_longest_token_say(text: str) -> None:
    assert len(TOKENIZER.encode(text)) * TOKENIZER.longest_token >= len(text.encode())
