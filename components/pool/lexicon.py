"""The words the generated tasks are made of.

Invariant: within one task no name and no word is drawn twice, so no subtask can disturb another. Names carry no
extension and the two lists share no entry: a small model must learn to copy them exactly, and every ambiguity costs it
thousands of examples (facts: docs/miniature.md).
"""

from __future__ import annotations

import random
from collections.abc import Set

_NAMES = """
alpha beta gamma delta lunar solar amber copper river ocean forest desert bridge tower garden market report invoice
notes draft config server motor sensor
"""
_WORDS = """
apple banana cherry mango kiwi lemon melon orange papaya peach grape guava tiger lion zebra panda koala otter eagle
falcon raven robin whale shark violin piano guitar flute cello harp
"""

NAMES = tuple(_NAMES.split())
"""File and folder names."""

WORDS = tuple(_WORDS.split())
"""Contents of files."""

TYPOS = {
    "host": "hots",
    "port": "prot",
    "user": "usre",
    "mode": "mdoe",
    "path": "ptah",
    "level": "leevl",
    "cache": "cahce",
    "retry": "rtery",
    "limit": "lmiit",
    "timeout": "tiemout",
}
"""Configuration keys and how they are misspelt. No misspelling is the end of another key."""


class Draw:
    """The seeded draws of one task. Names and words come without replacement, and none that is `taken`."""

    def __init__(self, rng: random.Random, taken: Set[str] = frozenset()) -> None:
        self.rng = rng
        names, words = ([each for each in every if each not in taken] for every in (NAMES, WORDS))
        self._names = rng.sample(names, len(names))
        self._words = rng.sample(words, len(words))

    def name(self) -> str:
        """A file name no other subtask has. Raises LookupError when none is left."""
        return self._names.pop()

    def word(self) -> str:
        """A word no other subtask has. Raises LookupError when none is left."""
        return self._words.pop()

    def words(self, count: int) -> list[str]:
        """`count` distinct words."""
        return [self.word() for _ in range(count)]
