"""Texts as sets of word windows, the unit in which repetition between tasks is measured.

A window is `size` consecutive words; words are case-folded runs of letters, digits and underscores, so that layout,
punctuation and quoting do not hide a copy. Windows are compared by 64-bit polynomial hashes; whoever reports a match
compares the words themselves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"\w+")
BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that its powers never vanish modulo 2^64."""


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, in order."""
    return tuple(WORD.findall(text.casefold()))


@lru_cache(maxsize=1 << 20)
def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def windows(words: Sequence[str], size: int) -> NDArray[np.uint64]:
    """Hashes of all windows of `size` words, in order of their first word.

    Returns:
        (len(words) - size + 1,) uint64; empty for a text shorter than a window.
    """
    count = len(words) - size + 1
    if count < 1:
        return np.empty(0, np.uint64)
    numbers = np.fromiter((_number(word) for word in words), np.uint64, len(words))
    hashes = np.zeros(count, np.uint64)
    for offset in range(size):
        hashes = hashes * BASE + numbers[offset : offset + count]
    return hashes
