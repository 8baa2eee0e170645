"""Tasks of one pool that are nearly the same: of each group of them one is kept.

Two tasks are near duplicates when the 5-grams of their instructions have a Jaccard index of at least a threshold.
MinHash proposes the pairs (`datasketch`) and misses one at the threshold once in a million; the exact index decides, so
that no task is dropped for an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from components.curation.shingles import windows, words_of

GRAM = 5
PERMUTATIONS = 256
MISSED = 1e-6
"""Greatest probability that a pair at the threshold is not proposed."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A task that is dropped, the task that is kept for it, and the Jaccard index of the two."""

    task_id: str
    kept: str
    jaccard: float


def near_duplicates(instructions: Mapping[str, str], order: Sequence[str], threshold: float) -> list[Duplicate]:
    """Every task that nearly repeats a kept one before it.

    Args:
        instructions: by task id.
        order: all task ids, the best first: whoever comes first is kept.
        threshold: Jaccard index, in (0, 1].

    Returns:
        In the given order; a task that repeats several is told with the one that it repeats most.

    Raises:
        ValueError: the threshold is out of range, or `order` does not name each task once.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], not {threshold}")
    if sorted(order) != sorted(instructions):
        raise ValueError("order must name every task of instructions once")
    from datasketch import MinHash, MinHashLSH  # Imported for a second, with scipy; most pools are not compared.

    lsh = MinHashLSH(num_perm=PERMUTATIONS, params=_bands(threshold))
    kept: dict[str, NDArray[np.uint64]] = {}
    dropped = []
    for task in order:
        grams = _grams(instructions[task])
        sketch = MinHash(num_perm=PERMUTATIONS)
        sketch.update_batch([value.tobytes() for value in grams])
        repeated = [(_jaccard(grams, kept[other]), other) for other in lsh.query(sketch)]
        index, other = max(repeated, default=(0.0, ""))
        if index >= threshold:
            dropped.append(Duplicate(task, other, index))
        else:
            kept[task] = grams
            lsh.insert(task, sketch)
    return dropped


def _bands(threshold: float) -> tuple[int, int]:
    """(bands, rows a band) of the index that proposes the fewest pairs and misses one of `threshold` seldom enough.

    A pair of Jaccard index j shares no band of r rows with probability (1 - j^r)^b.
    """
    for rows in range(PERMUTATIONS, 1, -1):
        bands = PERMUTATIONS // rows
        if (1 - threshold**rows) ** bands <= MISSED:
            return bands, rows
    return PERMUTATIONS, 1


def _grams(text: str) -> NDArray[np.uint64]:
    """The 5-grams of a text, sorted; a shorter text is one gram."""
    words = words_of(text)
    return np.unique(windows(words, min(GRAM, max(1, len(words)))))


def _jaccard(ours: NDArray[np.uint64], theirs: NDArray[np.uint64]) -> float:
    common = np.intersect1d(ours, theirs, assume_unique=True).size
    union = ours.size + theirs.size - common
    return common / union if union else 1.0
