"""Masked advantages of 4 rows of 131,072 tokens, and their largest error against a token-by-token float64 recurrence.

Rates count all tokens, trainable or not, at gamma 1 and lambda 0.95 (`mtok_per_s`: 40 % of tokens trainable, in runs of
128 as answers are) and for other masks. lambda 1 is no special case of the code.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import describe
from components.ppo import advantages, place_terminal

ROWS, TOKENS, RUN = 4, 131_072, 128
SHARES = (0.1, 0.4, 1.0)
LAMBDA = 0.95
REPETITIONS = 21


def batch(share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards on the last trainable token, values, mask."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(ROWS, TOKENS // RUN, generator=generator) < share).repeat_interleave(RUN, dim=1)
    values = torch.rand(ROWS, TOKENS, generator=generator)
    return place_terminal(torch.rand(ROWS, generator=generator), mask), values, mask


def largest_error(share: float) -> float:
    """Of advantages and returns."""
    rewards, values, mask = batch(share)
    got = [x.numpy() for x in advantages(rewards, values, mask, gamma=1.0, lam=LAMBDA)]
    worst = 0.0
    for row in range(ROWS):
        carry = following = 0.0
        for j in np.flatnonzero(mask[row].numpy())[::-1]:
            value = float(values[row, j])
            carry = float(rewards[row, j]) + following - value + LAMBDA * carry
            following = value
            worst = max(worst, abs(float(got[0][row, j]) - carry), abs(float(got[1][row, j]) - carry - value))
    return worst


def rate(share: float) -> float:
    """Median million tokens a second."""
    arguments = batch(share)
    times = []
    for _ in range(REPETITIONS + 1):
        start = time.perf_counter()
        advantages(*arguments, gamma=1.0, lam=LAMBDA)
        times.append(time.perf_counter() - start)
    return round(ROWS * TOKENS / statistics.median(times[1:]) / 1e6, 1)


def main() -> None:
    """Measures and prints one JSON object."""
    torch.set_num_threads(1)
    rates = {str(share): rate(share) for share in SHARES}
    figures = {
        "mtok_per_s": rates["0.4"],
        "max_error": max(largest_error(share) for share in SHARES),
        "mtok_per_s_by_trainable_share": rates,
        "repetitions": REPETITIONS,
        "machine": describe(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
