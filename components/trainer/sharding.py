"""Which positions of a packed micro-batch one rank works on (paper Algorithm 4: SP ∘ pad ∘ CP).

Invariant: tokens, targets and routing rows are chosen by one and the same index, so they cannot be cut differently.

Context parallelism cuts every stream into 2 cp equal pieces; rank r takes piece r and piece 2 cp - 1 - r, so that each
rank has as much to attend to as any other. Sequence parallelism then cuts a rank's positions into tp consecutive ones.
Padding makes the cuts even: at the end of every stream for the first, one more stream of padding for the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
PADDING = -1
"""Stands in an index where a position belongs to no stream."""


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of every batch, as (rank, ranks).

    Attributes:
        data: deals out whole micro-batches.
        context: cuts every stream.
        sequence: cuts the rows that a router sees.
        even: micro-batches that the data ranks run at the same time are padded to one length.
    """

    data: tuple[int, int] = (0, 1)
    context: tuple[int, int] = (0, 1)
    sequence: tuple[int, int] = (0, 1)
    even: bool = False

    @property
    def piece(self) -> int:
        """What the length of a padded stream is a multiple of."""
        return 1 if self.context[1] == 1 else 2 * self.context[1]

    @property
    def unit(self) -> int:
        """What the length of a padded micro-batch is a multiple of, over all context ranks."""
        return math.lcm(self.piece, self.context[1] * self.sequence[1])


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of one micro-batch on one rank.

    Attributes:
        borders: where each padded stream begins and the last one ends, over all context ranks.
        index_T: int64, for each of the rank's positions its place among the streams laid end to end, or PADDING.
    """

    borders: tuple[int, ...]
    index_T: Int64


def padded(length: int, multiple: int) -> int:
    """The next multiple."""
    return -(-length // multiple) * multiple


def positions(lengths: Sequence[int], share: Share, *, total: int = 0) -> Positions:
    """Lays streams of these lengths end to end and takes the rank's part; at least `total` positions over all ranks."""
    streams = [(padded(length, share.piece), length) for length in lengths]
    used = sum(size for size, _ in streams)
    whole = padded(max(used, total, 1), share.unit)
    if whole > used:
        streams.append((whole - used, 0))
    rank, ranks = share.context
    parts: list[Int64] = []
    start = 0
    for size, length in streams:
        place = np.arange(size, dtype=np.int64)
        index = np.where(place < length, start + place, PADDING)
        parts.append(index if ranks == 1 else _two_pieces(index, rank, ranks))
        start += length
    borders = np.cumsum([0, *(size for size, _ in streams)])
    return Positions(tuple(borders.tolist()), np.concatenate(parts))


def router_rows(index_T: Int64, share: Share) -> Int64:
    """The part of a rank's positions whose rows its routers see."""
    rank, ranks = share.sequence
    assert len(index_T) % ranks == 0
    size = len(index_T) // ranks
    return index_T[rank * size : (rank + 1) * size]


def _two_pieces(index: Int64, rank: int, ranks: int) -> Int64:
    pieces = index.reshape(2 * ranks, -1)
    return np.concatenate([pieces[rank], pieces[2 * ranks - 1 - rank]])
