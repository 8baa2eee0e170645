"""The compact form of a routing record, its validation and its checksum.

Invariant: `decode(encode(r), ...)` is `r`, and neither side can be given a record that no router could have produced.
One byte an expert up to 256 experts, two above: 384 bytes a token at 48 layers and 8 experts, a quarter of int32.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.errors import RecordError
from components.records import Routing

BYTE_EXPERTS = 256
"""Experts that fit into one byte."""

BLOCK_CHOICES = 65_536
"""Choices (a row at a layer) checked at once: their experts stay in the second-level cache."""


def encode(routing_RLK: NDArray[Any]) -> bytes:
    """Little-endian bytes, row by row, of the smallest width that holds every expert of the record.

    Raises:
        RecordError: not three-dimensional, not integers, negative, or beyond two bytes.
    """
    return _compact(routing_RLK).tobytes()


def decode(data: bytes | bytearray | memoryview, rows: int, layers: int, topk: int, num_experts: int) -> Routing:
    """The record of these bytes: uint8 up to 256 experts, uint16 above. Its own writable copy, validated.

    Raises:
        RecordError: the length fits no width, or the content is not a routing of `num_experts` experts.
    """
    count = rows * layers * topk
    width = next((width for width in (1, 2) if len(data) == count * width), None)
    if width is None:
        raise RecordError(f"{len(data)} bytes are not {rows} rows of {layers} layers and {topk} experts")
    stored = np.frombuffer(data, np.dtype(f"<u{width}")).reshape(rows, layers, topk)
    routing: Routing = stored.astype(np.uint8) if width == 1 else stored.astype(np.uint16)
    validate(routing, num_experts)
    if num_experts <= BYTE_EXPERTS:
        return routing.astype(np.uint8, copy=False)
    return routing.astype(np.uint16, copy=False)


def validate(routing_RLK: Routing, num_experts: int) -> None:
    """Every expert is in range and every choice names distinct experts.

    Raises:
        RecordError: naming the first row and layer that no router could have produced.
    """
    if routing_RLK.ndim != 3:
        raise RecordError(f"routing needs [rows, layers, experts], got {list(routing_RLK.shape)}")
    _, layers, topk = routing_RLK.shape
    if routing_RLK.size and int(routing_RLK.max()) >= num_experts:
        row, layer, _ = np.argwhere(routing_RLK >= num_experts)[0].tolist()
        experts = routing_RLK[row, layer].tolist()
        raise RecordError(f"routing row {row} layer {layer} names experts {experts} of {num_experts}")
    choices = routing_RLK.reshape(-1, topk)
    for start in range(0, len(choices), BLOCK_CHOICES):
        repeated = _repeats(choices[start : start + BLOCK_CHOICES])
        if repeated.any():
            row, layer = divmod(start + int(repeated.argmax()), layers)
            raise RecordError(f"routing row {row} layer {layer} repeats an expert: {routing_RLK[row, layer].tolist()}")


def checksum(routing_RLK: NDArray[Any]) -> int:
    """CRC-32 of shape and content in order, whatever integer type holds it.

    Taken when captures are stitched to a sample and compared before replay: rows that were permuted, shifted or
    batch-first have the right shape.
    """
    shape = np.array(routing_RLK.shape, dtype="<i8").tobytes()
    return zlib.crc32(_compact(routing_RLK).data, zlib.crc32(shape))


def bytes_per_token(layers: int, topk: int, num_experts: int) -> int:
    """Bytes that a row takes: one an expert up to 256 experts, two above."""
    return layers * topk * (1 if num_experts <= BYTE_EXPERTS else 2)


def _compact(routing_RLK: NDArray[Any]) -> NDArray[Any]:
    if routing_RLK.ndim != 3 or routing_RLK.dtype.kind not in "iu":
        raise RecordError(f"routing needs integers [rows, layers, experts], got {routing_RLK.dtype}{routing_RLK.shape}")
    if routing_RLK.dtype == np.uint8 or not routing_RLK.size:
        return np.ascontiguousarray(routing_RLK, np.uint8)
    least, most = int(routing_RLK.min()), int(routing_RLK.max())
    if least < 0 or most >= BYTE_EXPERTS**2:
        raise RecordError(f"experts {least} to {most} do not fit two bytes; a placeholder is no record of a choice")
    return np.ascontiguousarray(routing_RLK, np.dtype("u1" if most < BYTE_EXPERTS else "<u2"))


def _repeats(choices_CK: NDArray[Any]) -> NDArray[np.bool_]:
    """Which choices name an expert twice. Experts first, so that every comparison runs over contiguous memory."""
    experts_KC = np.ascontiguousarray(choices_CK.T)
    repeated_C = np.zeros(len(choices_CK), np.bool_)
    for later in range(1, len(experts_KC)):
        for earlier in range(later):
            repeated_C |= experts_KC[later] == experts_KC[earlier]
    return repeated_C
