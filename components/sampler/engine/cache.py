"""The slots: keys, values, tokens, log-probs and routing of one sequence each.

Invariant: positions [0, length) of a slot hold the keys, values and routing of its tokens [0, length) under the current
weights. A finished sequence stays in its slot until the slot is needed, so that a later prompt can go on from it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.records import Int32
from components.sampler.engine.architecture import Architecture

# Shorter common prefixes are cheaper to compute again than to look after.
_MIN_SHARED = 16


class SlotCache:
    """Static buffers for `slots` sequences of at most `context` tokens."""

    def __init__(self, arch: Architecture, slots: int, context: int, dtype: torch.dtype, *, routing: bool) -> None:
        self.slots, self.context, self.kv_heads = slots, context, arch.kv_heads
        shape = (slots * arch.kv_heads, context, arch.head_dim)
        # Zeros, not empty: a masked position still meets its value with weight 0, and 0 * NaN is NaN.
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(arch.layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(arch.layers)]
        self.tokens = torch.zeros(slots, context, dtype=torch.int32)
        self.logprobs = torch.zeros(slots, context)
        self.uniforms = torch.zeros(slots, context)
        self.mask = torch.zeros(slots, context)
        kind = torch.uint8 if arch.experts <= 256 else torch.int32
        self.routing = torch.zeros(slots, context, arch.layers, arch.topk, dtype=kind) if routing else None
        self.length: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self.free = np.ones(slots, dtype=np.bool_)
        self._last_used: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._clock = 0
        self._tokens_np: Int32 = self.tokens.numpy()

    def acquire(self, prompt: Int32, reusable: int) -> tuple[int, int]:
        """Takes a free slot for a prompt, with as much of its prefix as any slot holds, at most `reusable` tokens.

        A slot whose whole content the prompt extends is continued in place; a part of another's content is copied into
        the least recently used free slot, so that a fork does not destroy the history it came from.

        Returns:
            The slot, and how many positions of the prompt it already holds.
        """
        shared = np.minimum(self._shared_prefix(prompt), reusable)
        source = int(shared.argmax())
        held = int(shared[source])
        if held < min(_MIN_SHARED, len(prompt) - 1):
            held = 0
        if not (held and self.free[source] and held >= self.length[source] - 1):
            target = self._victim()
            if held and target != source:
                self._copy(source, target, held)
            source = target
        self.free[source] = False
        self.length[source] = held
        self._tokens_np[source, : len(prompt)] = prompt
        return source, held

    def release(self, slot: int, length: int) -> None:
        """Gives a slot back; its first `length` positions stay usable as a prefix."""
        self._clock += 1
        self.length[slot] = length
        self.free[slot] = True
        self._last_used[slot] = self._clock

    def clear(self) -> None:
        """Forgets the prefixes of free slots, as new weights require."""
        self.length[self.free] = 0
        self._last_used[self.free] = 0

    def open_mask(self, slot: int, length: int) -> None:
        """Lets decoding of a slot see its first `length` positions and no other."""
        self.mask[slot, :length] = 0.0
        self.mask[slot, length:] = -torch.inf

    def flat_index(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Row of each (slot, position) in a buffer seen as [slots * context, ...]."""
        return slots * self.context + positions

    def kv_index(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Rows of each (slot, position, head) in a key or value buffer seen as [slots * heads * context, dim]."""
        heads = torch.arange(self.kv_heads) * self.context
        return ((slots * (self.kv_heads * self.context) + positions)[:, None] + heads).reshape(-1)

    def _shared_prefix(self, prompt: Int32) -> NDArray[np.int64]:
        width = min(len(prompt), int(self.length.max(initial=0)))
        if not width:
            return np.zeros(self.slots, dtype=np.int64)
        differs = self._tokens_np[:, :width] != prompt[:width]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
        return np.minimum(first, self.length)

    def _victim(self) -> int:
        """The free slot to overwrite: an empty one, else the least recently used."""
        age = np.where(self.free, np.where(self.length > 0, self._last_used, -1), np.iinfo(np.int64).max)
        return int(age.argmin())

    def _copy(self, source: int, target: int, length: int) -> None:
        h = self.kv_heads
        for buffer in (*self.keys, *self.values):
            buffer[target * h : (target + 1) * h, :length] = buffer[source * h : (source + 1) * h, :length]
        if self.routing is not None:
            self.routing[target, :length] = self.routing[source, :length]
