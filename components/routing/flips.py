"""How far two routings of the same tokens are apart.

Invariant: a choice is a set. Experts in another order compute the same output and are no flip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from components.errors import RecordError
from components.records import Bool, Routing

BLOCK_ROWS = 4_096
"""Rows compared at once: the comparison of K x K experts is bounded to some megabytes."""


@dataclass(frozen=True, slots=True)
class Flips:
    """Shares over the compared rows; NaN when there are none.

    Attributes:
        rows: rows compared.
        experts: share of chosen experts that the other routing did not choose.
        choices: share of (row, layer) that differ in any expert.
        tokens: share of rows that differ in any layer.
        layers_per_token: mean number of layers in which a row differs.
    """

    rows: int
    experts: float
    choices: float
    tokens: float
    layers_per_token: float


def flips(routing_RLK: Routing, other_RLK: Routing, rows_R: Bool | None = None) -> Flips:
    """Compares two records of the same tokens, over `rows_R` when given (rows that predict a loss token, say)."""
    if routing_RLK.shape != other_RLK.shape:
        raise RecordError(f"routings differ in shape: {list(routing_RLK.shape)} and {list(other_RLK.shape)}")
    if rows_R is not None:
        routing_RLK, other_RLK = routing_RLK[rows_R], other_RLK[rows_R]
    rows, layers, topk = routing_RLK.shape
    if not rows * layers * topk:
        return Flips(rows, *[float("nan")] * 4)
    flipped_RL = np.concatenate(
        [
            _flipped(routing_RLK[start : start + BLOCK_ROWS], other_RLK[start : start + BLOCK_ROWS])
            for start in range(0, rows, BLOCK_ROWS)
        ]
    )
    differs_RL = flipped_RL > 0
    return Flips(
        rows=rows,
        experts=float(flipped_RL.mean() / topk),
        choices=float(differs_RL.mean()),
        tokens=float(differs_RL.any(axis=1).mean()),
        layers_per_token=float(differs_RL.sum(axis=1).mean()),
    )


def _flipped(routing_RLK: Routing, other_RLK: Routing) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Experts of each choice that the other one lacks."""
    shared_RLK = (routing_RLK[..., :, None] == other_RLK[..., None, :]).any(axis=-1)
    return np.asarray(routing_RLK.shape[2] - shared_RLK.sum(axis=-1), dtype=np.int64)
