"""What a loss measured, kept as sums so that micro-batches and ranks can be added before anything is divided.

Invariant: the figures of added tallies are those of one tally over the union of their tokens. A mean of micro-batch
means weighs tokens by the luck of the packing; a sum over the number of micro-batches inflates a thousandfold (Eq 15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Mapping[str, float]):
    """Sums and maxima over loss tokens. Read as a mapping it gives means and maxima; empty when it saw no token.

    Attributes:
        count: loss tokens seen.
        sums: name -> sum over those tokens.
        maxima: name -> largest over those tokens.
    """

    count: Tensor
    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]

    @classmethod
    def of(cls, count: Tensor, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor]) -> Tally:
        """Keeps every figure in float64, off the autograd graph."""
        return cls(
            count.detach().double(),
            {name: value.detach().double() for name, value in sums.items()},
            {name: value.detach().double() for name, value in maxima.items()},
        )

    def __add__(self, other: Tally) -> Tally:
        """The tally of both sets of tokens."""
        if self.sums.keys() != other.sums.keys() or self.maxima.keys() != other.maxima.keys():
            raise ValueError(f"tallies of different losses: {sorted(self.sums)} and {sorted(other.sums)}")
        return Tally(
            self.count + other.count,
            {name: value + other.sums[name] for name, value in self.sums.items()},
            {name: torch.maximum(value, other.maxima[name]) for name, value in self.maxima.items()},
        )

    def reduce(self, group: dist.ProcessGroup | None = None) -> Tally:
        """The tally over all ranks of `group` (default: the world). Two collectives; every rank must call it."""
        added = torch.stack([self.count, *self.sums.values()])
        dist.all_reduce(added, dist.ReduceOp.SUM, group)
        count, *sums = added.unbind()
        maxima: Mapping[str, Tensor] = {}
        if self.maxima:
            largest = torch.stack(list(self.maxima.values()))
            dist.all_reduce(largest, dist.ReduceOp.MAX, group)
            maxima = dict(zip(self.maxima, largest.unbind(), strict=True))
        return Tally(count, dict(zip(self.sums, sums, strict=True)), maxima)

    def __getitem__(self, name: str) -> float:
        if not self.count:
            raise KeyError(name)
        return float(self.maxima[name] if name in self.maxima else self.sums[name] / self.count)

    def __iter__(self) -> Iterator[str]:
        return iter([*self.sums, *self.maxima] if self.count else [])

    def __len__(self) -> int:
        return len(self.sums) + len(self.maxima) if self.count else 0
