"""Uniforms of a request's draws.

Invariant: without a seed of its own, a request's uniforms depend on the engine's seed, the weight version, the prompt
and how many times that prompt was asked under these weights: never on arrival order or on what else runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np

from components.records import Float32, Int32


class SeedSequence:
    """Derives seeds; one engine has one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._version = ""
        self._asked: Counter[bytes] = Counter()

    def restart(self, version: str) -> None:
        """New weights: prompts are counted afresh."""
        self._version = version
        self._asked.clear()

    def uniforms(self, prompt: Int32, count: int, seed: int | None) -> Float32:
        """Float32[count] in [0, 1)."""
        if seed is None:
            text = f"{self._seed}/{self._version}/".encode()
            digest = hashlib.blake2b(text + prompt.tobytes(), digest_size=16).digest()
            seed = int.from_bytes(digest, "little") + self._asked[digest]
            self._asked[digest] += 1
        return np.random.Generator(np.random.PCG64(seed)).random(count, dtype=np.float32)
