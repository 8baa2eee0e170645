"""From samples to micro-batches: streams packed end to end, padded only where several ranks must cut them evenly.

Invariants: every stream of two tokens or more is in exactly one micro-batch of one data rank, whole; no micro-batch
holds more than `capacity` tokens and their padding; all data ranks have equally many micro-batches; `pack` gives the
bins of first-fit-decreasing, in O(n log n).

A stream of N tokens is fed as its first N-1 tokens: the last one predicts nothing. So positions, targets and routing
rows (N-1 of them) are one and the same index, and a whole micro-batch is their concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.errors import RecordError
from components.records import Routing, Sample
from components.routing import checksum
from components.trainer.sharding import PADDING, Int64, Share, padded, positions, router_rows

WHOLE = Share()
"""The share of a single process."""


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of indices, by first-fit-decreasing: longest first, each into the first bin that still has room.

    Ties keep their order. The first bin with room is found by descending a tree of maxima over the room left.

    Raises:
        ValueError: a length is not positive, or does not fit a bin of its own.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if not len(sizes):
        return []
    if sizes.min() < 1 or sizes.max() > capacity:
        raise ValueError(f"lengths must lie in 1..{capacity}, got {sizes.min()}..{sizes.max()}")
    # Every bin but one is more than half full, so this many leaves cannot run out.
    leaves = 1 << int(2 * int(sizes.sum()) // capacity + 1).bit_length()
    room = [capacity] * (2 * leaves)
    bins: list[list[int]] = []
    order = np.argsort(-sizes, kind="stable")
    items, ordered = order.tolist(), sizes[order].tolist()
    count, start = len(items), 0
    while start < count:
        size = ordered[start]
        node = 1
        while node < leaves:
            node += node
            if room[node] < size:
                node += 1
        # Equal sizes go on filling the same bin: one search for all of them.
        stop, free = start, room[node]
        while stop < count and free >= size and ordered[stop] == size:
            free -= size
            stop += 1
        if node - leaves == len(bins):
            bins.append([])
        bins[node - leaves] += items[start:stop]
        start = stop
        room[node] = free
        while node > 1:
            node >>= 1
            largest = max(room[2 * node], room[2 * node + 1])
            if room[node] == largest:
                break
            room[node] = largest
    return bins


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One rank's part of streams packed end to end. Alone, it has all of it, and no padding.

    Attributes:
        streams: index of each stream in the batch, in order; none in a micro-batch that only keeps ranks in step.
        lengths: positions of each stream, in order.
        borders: where each padded stream begins and the last one ends, over all context ranks; padding may be a last
            stream of its own.
        ids_T: int64, the token at each of the rank's positions; 0 where there is padding.
        offsets_T: int64, place of each position in its stream.
        padding_T: bool, or None when there is no padding.
        rows_M: int64, the positions among T whose next token is trainable.
        places_M: int64, the same positions among the streams laid end to end.
        targets_M: int64, those next tokens.
        streams_M: int64, the place in `streams` of the stream that each of them belongs to.
        routing_LRK: the recorded experts of the rows that the rank's routers see, -1 at padding; None to route freely.
    """

    streams: tuple[int, ...]
    lengths: tuple[int, ...]
    borders: tuple[int, ...]
    ids_T: Tensor
    offsets_T: Tensor
    padding_T: Tensor | None
    rows_M: Tensor
    places_M: Tensor
    targets_M: Tensor
    streams_M: Tensor
    routing_LRK: Tensor | None

    def to(self, device: torch.device) -> MicroBatch:
        """The same there. The routing stays where it is: each router takes its own part of it (`replay`)."""
        moved = {name: getattr(self, name).to(device) for name in _MOVED}
        padding = None if self.padding_T is None else self.padding_T.to(device)
        return replace(self, padding_T=padding, **moved)


_MOVED = ("ids_T", "offsets_T", "rows_M", "places_M", "targets_M", "streams_M")


def micro_batches(samples: Sequence[Sample], capacity: int, *, replay: bool, share: Share = WHOLE) -> list[MicroBatch]:
    """Packs `samples` into micro-batches of at most `capacity` tokens; streams of one token have nothing to learn.

    Every rank is given all samples and cuts out its own share.

    Raises:
        RecordError: a stream is longer than `capacity`; or replay is asked for and a stream has no routing, or other
            rows than were captured.
    """
    lengths = [len(sample.tokens) - 1 for sample in samples]
    if max(lengths, default=0) > capacity:
        raise RecordError(f"a stream of {max(lengths) + 1} tokens does not fit trainer.micro_batch_tokens {capacity}")
    kept = [index for index, length in enumerate(lengths) if length > 0]
    sizes = [min(padded(lengths[index], share.piece), capacity) for index in kept]
    bins = [[kept[place] for place in places] for places in pack(sizes, capacity)]
    rank, ranks = share.data
    if ranks > 1:
        bins = _dealt(bins, lengths, ranks)
    totals = [sum(padded(lengths[index], share.piece) for index in streams) for streams in bins]
    made = []
    for first in range(0, len(bins), ranks):
        own = first + rank
        total = max(totals[first : first + ranks]) if share.even else totals[own]
        made.append(_micro_batch(samples, tuple(bins[own]), replay, share, total))
    return made


def trainable(samples: Sequence[Sample]) -> int:
    """Trainable tokens of the whole batch, whoever works on them.

    Raises:
        RecordError: there is none.
    """
    tokens = sum(int(sample.loss_mask[1:].sum()) for sample in samples)
    if not tokens:
        raise RecordError("the batch has no trainable token")
    return tokens


def trainable_streams(samples: Sequence[Sample]) -> int:
    """Streams of the whole batch that have a trainable token, whoever works on them."""
    return sum(bool(sample.loss_mask[1:].any()) for sample in samples)


def gather(batch: MicroBatch, arrays: Sequence[NDArray[np.float32]]) -> Tensor:
    """float32[M], where the batch is: what stands at the trainable tokens in arrays aligned with the samples."""
    where = batch.places_M.device
    if not batch.streams:
        return torch.zeros(0, device=where)
    laid = np.concatenate([arrays[index][1:] for index in batch.streams]).astype(np.float32, copy=False)
    return torch.from_numpy(laid).to(where)[batch.places_M]


def scatter(batch: MicroBatch, values_M: Tensor, into: Sequence[NDArray[np.float32]]) -> None:
    """Writes one value a trainable token into per-sample arrays aligned with the tokens; zero elsewhere."""
    if not batch.streams:
        return
    laid = torch.zeros(sum(batch.lengths)).index_copy_(0, batch.places_M.cpu(), values_M.float().cpu()).numpy()
    for index, part in zip(batch.streams, np.split(laid, np.cumsum(batch.lengths)[:-1]), strict=True):
        into[index][1:] = part


def _dealt(bins: Sequence[list[int]], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """As many bins as `ranks` can share evenly, in the order of their size: the fullest are cut in two, or there are
    empty ones where a batch has too few streams."""

    def size(streams: Sequence[int]) -> int:
        return sum(lengths[index] for index in streams)

    dealt = [list(streams) for streams in bins]
    while len(dealt) % ranks:
        divisible = [streams for streams in dealt if len(streams) > 1]
        if not divisible:
            dealt.append([])
            continue
        fullest = max(divisible, key=size)
        halves: tuple[list[int], list[int]] = ([], [])
        for index in sorted(fullest, key=lambda index: -lengths[index]):
            min(halves, key=size).append(index)
        dealt[dealt.index(fullest)] = halves[0]
        dealt.append(halves[1])
    return sorted(dealt, key=size, reverse=True)


def _micro_batch(
    samples: Sequence[Sample], streams: tuple[int, ...], replay: bool, share: Share, total: int
) -> MicroBatch:
    chosen = [samples[index] for index in streams]
    lengths = tuple(len(sample.tokens) - 1 for sample in chosen)
    where = positions(lengths, share, total=total)
    index = where.index_T
    following = _laid([sample.tokens[1:] for sample in chosen], np.int64)
    mask = _taken(_laid([sample.loss_mask[1:] for sample in chosen], np.bool_), index, False)
    rows = np.flatnonzero(mask)
    padding = index == PADDING
    return MicroBatch(
        streams=streams,
        lengths=lengths,
        borders=where.borders,
        ids_T=torch.from_numpy(_taken(_laid([sample.tokens[:-1] for sample in chosen], np.int64), index, 0)),
        offsets_T=torch.from_numpy(_taken(_laid([np.arange(length) for length in lengths], np.int64), index, 0)),
        padding_T=torch.from_numpy(padding) if padding.any() else None,
        rows_M=torch.from_numpy(rows),
        places_M=torch.from_numpy(index[rows]),
        targets_M=torch.from_numpy(following[index[rows]]),
        streams_M=torch.from_numpy(np.searchsorted(np.cumsum(lengths), index[rows], side="right")),
        routing_LRK=_routing(samples, chosen, router_rows(index, share)) if replay else None,
    )


def _laid(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """Arrays end to end."""
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _taken(laid: NDArray[Any], index_T: Int64, filler: int | bool) -> NDArray[Any]:
    """What stands at each position; `filler` at padding."""
    return np.append(laid, np.asarray(filler, laid.dtype))[index_T]


def _routing(samples: Sequence[Sample], chosen: Sequence[Sample], index_R: Int64) -> Tensor:
    """The rows that a rank's routers see, wide enough for the -1 of padding."""
    laid = np.concatenate([_captured(sample) for sample in chosen or samples[:1]])
    wide = laid.astype(np.int16 if laid.dtype == np.uint8 else np.int32)
    rows = np.concatenate([wide, np.full((1, *wide.shape[1:]), PADDING, wide.dtype)])[index_R]
    return torch.from_numpy(rows).transpose(0, 1).contiguous()


def _captured(sample: Sample) -> Routing:
    """The routing of a sample, if it is what was captured: permuted rows have the right shape."""
    name = f"sample {sample.trial_id}/{sample.chunk}"
    if sample.routing is None:
        raise RecordError(f"{name} has no routing to replay")
    if sample.routing_checksum is None:
        raise RecordError(f"{name} has routing without the checksum of its capture")
    if (found := checksum(sample.routing)) != sample.routing_checksum:
        raise RecordError(
            f"{name}: its routing has checksum {found:08x}, captured was {sample.routing_checksum:08x}; "
            "rows were changed or permuted since"
        )
    return sample.routing
