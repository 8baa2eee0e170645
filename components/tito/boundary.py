"""Where the next prompt resumes after a turn: the four boundary cases (paper Eq 6-9).

Invariant: the decision only finds a cut in the next prompt. What was sampled, and what it was conditioned on, stay in
the stream as they are; the next prompt from the cut on is appended as context. The first admissible case decides:

1. strict: T_i = p_i || a_i is a prefix of the next prompt.
2. normalized: for the least s + u, drop_s(p_i) || drop_u(a_i) is a prefix. The template dropped the prompt's tail (an
   empty reasoning block, say) or wrote the answer's tail anew. The cut then advances past that tail's rendering; read
   literally the rule would emit the tail twice. Only white space may be gone altogether (templates strip it), and an
   answer of nothing else gives no evidence that the next prompt holds it.
3. retokenized: the next prompt holds the same text in other tokens.
4. split: anything else. History was rewritten, and a new chunk is the only faithful stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np

from components.records import Int32, Turn

PROMPT_TAIL = 96
"""Most tokens of the prompt's tail that a template may drop: the longest suffix that templates share (paper: 96)."""

ANSWER_TAIL = 16
"""Most tokens of the answer's tail that may be rendered anew under case 2 (paper: 16)."""

PROBE = 8
"""Tokens decoded to rule a position out before its whole text is searched."""

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Tokenizer(Protocol):
    """What the stitcher and the gateway need of a tokenizer. Special tokens are kept by `decode`."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised, none added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` and the span of characters each one covers."""
        ...


class Case(StrEnum):
    """How a turn boundary was decided. Mirrored one to one as the metric `tito/<case>`."""

    STRICT = "strict"
    NORMALIZED = "normalized"
    RETOKENIZED = "retokenized"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A decided boundary: the next prompt resumes at `cut`. A split resumes at 0: the whole prompt is context."""

    case: Case
    cut: int


def decide(turn: Turn, next_prompt: Int32, tokenizer: Tokenizer) -> Boundary:
    """The first admissible case for the boundary between `turn` and the prompt of the turn after it."""
    turn, next_prompt = as_int32(turn), np.asarray(next_prompt, np.int32)
    if is_strict(turn, next_prompt):
        return Boundary(Case.STRICT, len(turn.prompt_ids) + len(turn.completion_ids))
    kept = _kept_prompt(turn.prompt_ids, next_prompt)
    least = len(turn.prompt_ids) - kept
    if kept == 0 or least > PROMPT_TAIL or not tokenizer.decode(turn.completion_ids.tolist()).strip():
        return Boundary(Case.SPLIT, 0)
    cut = _normalized(turn, next_prompt, least, tokenizer)
    if cut is not None:
        return Boundary(Case.NORMALIZED, cut)
    cut = _retokenized(turn, next_prompt, least, tokenizer)
    return Boundary(Case.SPLIT, 0) if cut is None else Boundary(Case.RETOKENIZED, cut)


def is_strict(turn: Turn, next_prompt: Int32) -> bool:
    """Eq 6: the turn's prompt and answer are a prefix of the next prompt, id for id."""
    start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids)
    if end > len(next_prompt) or turn.completion_ids.tobytes() != next_prompt[start:end].tobytes():
        return False
    return same_ids(turn.prompt_ids, next_prompt[:start])


def as_int32(turn: Turn) -> Turn:
    """The turn with its ids as int32; itself when they are."""
    if turn.prompt_ids.dtype == np.int32 == turn.completion_ids.dtype:
        return turn
    return replace(
        turn, prompt_ids=turn.prompt_ids.astype(np.int32), completion_ids=turn.completion_ids.astype(np.int32)
    )


def same_ids(left: Int32, right: Int32) -> bool:
    """Whether two arrays of one length hold the same ids.

    Free when both are views of the same memory (prompts of one `TokenHistory`); otherwise bound by memory bandwidth,
    which is why no temporary is made: this comparison is most of the cost of stitching.
    """
    if not (left.flags.c_contiguous and right.flags.c_contiguous and left.dtype == right.dtype):
        return np.array_equal(left, right)
    here, there = left.ctypes.data, right.ctypes.data
    return here == there or _memcmp(here, there, left.nbytes) == 0


def _kept_prompt(prompt: Int32, next_prompt: Int32) -> int:
    """Length of the common prefix of two prompts, or 0 when it falls short of case 2's reach."""
    length = min(len(prompt), len(next_prompt))
    far = max(len(prompt) - PROMPT_TAIL, 0)
    if far > length or not same_ids(prompt[:far], next_prompt[:far]):
        return 0
    return far + _agreement(prompt[far:length], next_prompt[far:length])


def _agreement(left: Int32, right: Int32) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length


def _normalized(turn: Turn, next_prompt: Int32, least: int, tokenizer: Tokenizer) -> int | None:
    """Eq 7: the cut of the cheapest admissible (s, u), ties to the smaller u.

    Where more of the prompt's tail survives than the answer covers, the answer has merely met its like in that tail.
    """
    answer, end = turn.completion_ids, len(turn.prompt_ids)
    found = []
    for s in range(least, min(PROMPT_TAIL, end - 1) + 1):
        kept = _agreement(answer, next_prompt[end - s :])
        if len(answer) - kept <= ANSWER_TAIL and kept >= s - least:
            found.append((s + len(answer) - kept, len(answer) - kept, end - s + kept))
    for _, u, resumes in sorted(found):
        cut = _past_rendering(answer[len(answer) - u :], next_prompt, resumes, tokenizer)
        if cut is not None:
            return cut
    return None


def _past_rendering(tail: Int32, prompt: Int32, start: int, tokenizer: Tokenizer) -> int | None:
    """Where `prompt` goes on after its own rendering of `tail` at `start`, white space at the front of it stripped.

    A tail of nothing but white space is not stripped when white space like it stands there: it is part of a token that
    reaches into what follows, and no cut is exact.
    """
    if not len(tail):
        return start
    text = tokenizer.decode(tail.tolist())
    blank = len(text) - len(text.lstrip())
    for stripped in range(blank + 1):
        if 0 < stripped == len(text) and tokenizer.decode(prompt[start : start + PROBE].tolist()).startswith(text[0]):
            return None
        cut = _end_of_text(text[stripped:], prompt, start, tokenizer)
        if cut is not None:
            return cut
    return None


def _retokenized(turn: Turn, next_prompt: Int32, least: int, tokenizer: Tokenizer) -> int | None:
    """Eq 8: the cut after the answer's text in other tokens.

    First with the prompt's differing tail in other tokens too (a merge across the start of the answer), then with that
    tail dropped, if the answer reaches beyond what survives of it.
    """
    answer, end = turn.completion_ids.tolist(), len(turn.prompt_ids)
    rendered = tokenizer.decode([*turn.prompt_ids[end - least :].tolist(), *answer])
    cut = _end_of_text(rendered, next_prompt, end - least, tokenizer)
    if cut is not None:
        return cut
    text = tokenizer.decode(answer)
    for s in range(max(least, 1), min(PROMPT_TAIL, end - 1) + 1):
        cut = _end_of_text(text, next_prompt, end - s, tokenizer)
        if cut is not None and cut >= end - least:
            return cut
    return None


def _end_of_text(text: str, prompt: Int32, start: int, tokenizer: Tokenizer) -> int | None:
    """The least end with decode(prompt[start:end]) == text, or None: the offset map of the prompt's own tokens.

    The decoded length grows with the end, so bisection finds it; the neighbours are tried as well because half a UTF-8
    character decodes to more characters than a whole one.
    """
    if not text:
        return start

    def decoded(end: int) -> str:
        return tokenizer.decode(prompt[start:end].tolist())

    probe = decoded(start + PROBE)
    solid = probe.rstrip("\N{REPLACEMENT CHARACTER}")[: len(text)]
    if not text.startswith(solid):
        return None
    low, high = start + 1, len(prompt)
    reach = start + 2 * len(text) + PROBE  # rarely short: most tokens hold at least half a character
    if reach < high and len(decoded(reach)) >= len(text):
        high = reach
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(decoded(middle)) >= len(text) else (middle + 1, high)
    for end in range(max(start + 1, low - 4), min(low + 4, len(prompt)) + 1):
        if decoded(end) == text:
            return end
    return None
