"""Recurrences over streams that a context-parallel group has cut: contiguous shards, and a state from rank to rank.

Context parallelism gives rank r the pieces r and 2R - 1 - r of every stream (`trainer.sharding`); that suits attention.
A recurrence wants the pieces 2r and 2r + 1, in order: `contiguous` exchanges rows, `balanced` exchanges them back.
`receive` waits for the state that the rank before leaves behind, `send` hands on ours; going backward, the state's
gradient takes the same way in the other direction.

Invariant: forward and backward, every rank makes the same calls in the same order, so no rank waits for one that waits
for it. A rank alone makes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Streams:
    """The streams of one packed micro-batch, as the ranks of a group have cut them.

    Args:
        lengths: of the whole streams, each a multiple of twice the number of ranks.
        group: the context-parallel group; None for a process alone.
    """

    def __init__(self, lengths: Sequence[int], group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else group.rank()
        self.ranks = 1 if group is None else group.size()
        self.whole = tuple(lengths)
        self.lengths = tuple(length // self.ranks for length in lengths)
        """Of the rank's own shards."""

    def contiguous(self, rows: Tensor) -> Tensor:
        """[T, *]: from the rank's two pieces of every stream to its shard of every stream."""
        if self.group is None or self.ranks == 1:
            return rows
        there = _plan(self.whole, self.rank, self.ranks)
        return _exchanged(rows[there.order], there.sent, there.received, self.group)[there.places]

    def balanced(self, rows: Tensor) -> Tensor:
        """[T, *]: back."""
        if self.group is None or self.ranks == 1:
            return rows
        there = _plan(self.whole, self.rank, self.ranks)
        return _exchanged(rows[there.back], there.received, there.sent, self.group)[there.home]

    def receive(self, anchor: Tensor, like: Tensor) -> Tensor:
        """The state before this rank's shards; zeros on the first.

        Args:
            anchor: anything that has a gradient here, so that the state's gradient is computed and sent back.
            like: zeros in the state's shape.
        """
        if self.group is None or self.rank == 0:
            return like
        state: Tensor = _Receive.apply(anchor, like, self.group, self.rank - 1)  # type: ignore[no-untyped-call]
        return state

    def send(self, carrier: Tensor, state: Tensor) -> Tensor:
        """Hands the state behind this rank's shards on. `carrier` must be used in what follows; it is returned."""
        if self.group is None or self.rank == self.ranks - 1:
            return carrier
        carried: Tensor = _Send.apply(carrier, state, self.group, self.rank + 1)  # type: ignore[no-untyped-call]
        return carried


class Plan:
    """Which rows of one rank go where. Received rows stand by sender, then by stream, then by piece."""

    def __init__(self, whole: Sequence[int], rank: int, ranks: int) -> None:
        owned = sorted((rank, 2 * ranks - 1 - rank))
        sizes = [length // (2 * ranks) for length in whole]
        starts = [sum(sizes[:stream]) * 2 for stream in range(len(sizes))]
        order: list[Tensor] = []
        self.sent = [0] * ranks
        for target in range(ranks):
            for start, size in zip(starts, sizes, strict=True):
                for half, piece in enumerate(owned):
                    if piece // 2 == target:
                        order.append(torch.arange(size) + start + half * size)
                        self.sent[target] += size
        places = torch.zeros(sum(sizes) * 2, dtype=torch.int64)
        self.received = [0] * ranks
        arrived = 0
        for source in range(ranks):
            for start, size in zip(starts, sizes, strict=True):
                for half in range(2):
                    piece = 2 * rank + half
                    if min(piece, 2 * ranks - 1 - piece) == source:
                        places[start + half * size : start + (half + 1) * size] = torch.arange(size) + arrived
                        arrived += size
                        self.received[source] += size
        self.order = torch.cat(order)
        """Rows of the balanced cut, in the order in which they are sent."""
        self.places = places
        """For each row of the shards, its place among the received ones."""
        self.back, self.home = _inverse(self.places), _inverse(self.order)
        """The same the other way: rows of the shards in the order in which they return, and where they return to."""


@lru_cache(maxsize=4)
def _plan(whole: tuple[int, ...], rank: int, ranks: int) -> Plan:
    """Every layer of a micro-batch asks for the same."""
    return Plan(whole, rank, ranks)


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    result: Tensor = _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return result


class _Exchange(torch.autograd.Function):
    """Rows to and from every rank of the group."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    result = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, like: Tensor, group: dist.ProcessGroup, source: int) -> Tensor:
        ctx.group, ctx.source = group, source
        state = torch.empty_like(like)
        dist.recv(state, group=group, group_src=source)
        return state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, None]:
        dist.send(gradients[0].contiguous(), group=ctx.group, group_dst=ctx.source)
        return None, None, None, None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carrier: Tensor, state: Tensor, group: dist.ProcessGroup, target: int) -> Tensor:
        ctx.group, ctx.target, ctx.shape, ctx.dtype = group, target, state.shape, state.dtype
        dist.send(state.contiguous(), group=group, group_dst=target)
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        state_gradient = gradients[0].new_empty(ctx.shape, dtype=ctx.dtype)
        dist.recv(state_gradient, group=ctx.group, group_src=ctx.target)
        return gradients[0], state_gradient, None, None
