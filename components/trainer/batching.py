"""From samples to micro-batches: streams packed end to end, without a single padding token.

Invariants: every stream of two tokens or more is in exactly one micro-batch, whole; no micro-batch holds more than
`capacity` tokens; `pack` gives the bins of first-fit-decreasing, in O(n log n).

A stream of N tokens is fed as its first N-1 tokens: the last one predicts nothing. So positions, targets and routing
rows (N-1 of them) are one and the same index, and a whole micro-batch is their concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from components.errors import RecordError
from components.records import Routing, Sample
from components.routing import checksum


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
    """Streams packed end to end.

    Attributes:
        streams: index of each stream in the batch, in order.
        lengths: positions of each stream, in order; they sum to T.
        ids_T: int64, the token at each position.
        offsets_T: int64, place of each position in its stream.
        rows_M: int64, the positions whose next token is trainable.
        targets_M: int64, those next tokens.
        routing_LTK: int64, the recorded experts of each position, or None to route freely.
    """

    streams: tuple[int, ...]
    lengths: tuple[int, ...]
    ids_T: Tensor
    offsets_T: Tensor
    rows_M: Tensor
    targets_M: Tensor
    routing_LTK: Tensor | None


def micro_batches(samples: Sequence[Sample], capacity: int, *, replay: bool) -> list[MicroBatch]:
    """Packs `samples` into micro-batches of at most `capacity` tokens; streams of one token have nothing to learn.

    Raises:
        RecordError: a stream is longer than `capacity`; or replay is asked for and a stream has no routing, or other
            rows than were captured.
    """
    lengths = [len(sample.tokens) - 1 for sample in samples]
    if max(lengths, default=0) > capacity:
        raise RecordError(f"a stream of {max(lengths) + 1} tokens does not fit trainer.micro_batch_tokens {capacity}")
    kept = [index for index, length in enumerate(lengths) if length > 0]
    bins = pack([lengths[index] for index in kept], capacity)
    return [_micro_batch(samples, tuple(kept[place] for place in places), replay) for places in bins]


def gather(batch: MicroBatch, arrays: Sequence[np.ndarray]) -> Tensor:
    """float32[M]: what stands at the trainable tokens in per-sample arrays aligned with the tokens."""
    packed = np.concatenate([arrays[index][1:] for index in batch.streams]).astype(np.float32, copy=False)
    return torch.from_numpy(packed)[batch.rows_M]


def scatter(batch: MicroBatch, values_M: Tensor, into: Sequence[np.ndarray]) -> None:
    """Writes one value a trainable token into per-sample arrays aligned with the tokens."""
    packed = torch.zeros(len(batch.ids_T)).index_copy_(0, batch.rows_M, values_M.float().cpu()).numpy()
    for index, part in zip(batch.streams, np.split(packed, np.cumsum(batch.lengths)[:-1]), strict=True):
        into[index][1:] = part


def _micro_batch(samples: Sequence[Sample], streams: tuple[int, ...], replay: bool) -> MicroBatch:
    chosen = [samples[index] for index in streams]
    lengths = tuple(len(sample.tokens) - 1 for sample in chosen)
    ids = np.concatenate([sample.tokens[:-1] for sample in chosen]).astype(np.int64)
    following = np.concatenate([sample.tokens[1:] for sample in chosen]).astype(np.int64)
    rows = np.flatnonzero(np.concatenate([sample.loss_mask[1:] for sample in chosen]))
    return MicroBatch(
        streams=streams,
        lengths=lengths,
        ids_T=torch.from_numpy(ids),
        offsets_T=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        rows_M=torch.from_numpy(rows),
        targets_M=torch.from_numpy(following[rows]),
        routing_LTK=_routing(chosen) if replay else None,
    )


def _routing(samples: Sequence[Sample]) -> Tensor:
    rows = np.concatenate([_captured(sample) for sample in samples])
    return torch.from_numpy(rows.astype(np.int64)).transpose(0, 1).contiguous()


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
