"""`trainer.batching.pack` on 16,384 sequences of long-tailed lengths: time, bins, and first-fit-decreasing's bins."""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

from components.trainer.batching import pack

SEQUENCES = 16_384
CAPACITY = 32_768
REPETITIONS = 9


def first_fit_decreasing(lengths: list[int], capacity: int) -> int:
    """Number of bins, by looking through all of them for every sequence."""
    room = np.full(len(lengths), capacity)
    for length in sorted(lengths, reverse=True):
        room[np.argmax(room >= length)] -= length
    return int(np.count_nonzero(room < capacity))


def main() -> None:
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(8.5, 1.0, SEQUENCES).astype(int), 1, CAPACITY).tolist()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        bins = pack(lengths, CAPACITY)
        times.append(1e3 * (time.perf_counter() - start))
    figures = {
        "ms": round(statistics.median(times), 2),
        "bins": len(bins),
        "ffd_bins": first_fit_decreasing(lengths, CAPACITY),
        "sequences": SEQUENCES,
        "repetitions": REPETITIONS,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
