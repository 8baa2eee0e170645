"""The token history of a trajectory: what the sampler is given next, without re-encoding anything.

Invariant: the next prompt is the previous prompt, the sampled ids and the ids of what was appended since, in this
order; nothing in it is ever rewritten. So every boundary along a trajectory is strict and its re-encoded context is 0.

A history is a value: extending it gives another and leaves it as it is, so that a generation that failed, or a second
branch, continues from the same place. Histories of one line share one growing buffer, and prompts and routing handed
out are read-only views of it: a trajectory of T turns takes memory for its tokens, not for the sum of its prompts.
Only a second continuation of the same history copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.errors import RecordError
from components.records import Float32, Int32, Routing, Sampling, Turn

ROOM = 1_024
"""Elements a new buffer has at least."""


class Drawn(Protocol):
    """What was drawn for one prompt (`components.sampler.Generation`)."""

    @property
    def output_ids(self) -> Int32: ...
    @property
    def logprobs(self) -> Float32: ...
    @property
    def routing(self) -> Routing | None: ...
    @property
    def routing_start(self) -> int: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def weight_version(self) -> int: ...


class TokenHistory:
    """Ids of a trajectory up to some token, and the routing rows held of them."""

    __slots__ = ("_ids", "_rows", "weight_version")

    def __init__(self, prompt_ids: Sequence[int] | Int32 = ()) -> None:
        self._ids = _Span.of(np.asarray(prompt_ids, dtype=np.int32))
        self._rows: _Span | None = None
        self.weight_version: int | None = None
        """Version of the weights that drew the last answer; None before there is one."""

    def __len__(self) -> int:
        return self._ids.length

    @property
    def prompt_ids(self) -> Int32:
        """All ids, read-only: the next prompt."""
        return self._ids.view()

    def routing_start(self, weight_version: int | None) -> int:
        """First position whose routing a generation under these weights must return: earlier rows are held already."""
        return self._rows.length if self._rows is not None and self.weight_version == weight_version else 0

    def with_context(self, ids: Sequence[int] | Int32) -> TokenHistory:
        """This history and what the policy did not sample: an observation, a template's glue."""
        return self._next(self._ids.extended(np.asarray(ids, dtype=np.int32)), self._rows, self.weight_version)

    def with_turn(
        self,
        drawn: Drawn,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    ) -> tuple[Turn, TokenHistory]:
        """What was drawn for `prompt_ids` as a turn, with the routing of all its positions, and the history after it.

        Raises:
            RecordError: log-probs or routing rows do not fit the ids.
        """
        turn = Turn(
            prompt_ids=self.prompt_ids,
            completion_ids=np.asarray(drawn.output_ids, dtype=np.int32),
            logprobs=np.asarray(drawn.logprobs, dtype=np.float32),
            routing=None,
            weight_version=drawn.weight_version,
            finish_reason=drawn.finish_reason,
            sampling=sampling,
        )
        rows = self._joined_rows(drawn, len(turn.prompt_ids) + len(turn.completion_ids) - 1)
        after = self._next(self._ids.extended(turn.completion_ids), rows, drawn.weight_version)
        return (turn if rows is None else replace(turn, routing=rows.view())), after

    def _next(self, ids: _Span, rows: _Span | None, weight_version: int | None) -> TokenHistory:
        after = TokenHistory.__new__(TokenHistory)
        after._ids, after._rows, after.weight_version = ids, rows, weight_version
        return after

    def _joined_rows(self, drawn: Drawn, total: int) -> _Span | None:
        """Rows held of these weights, followed by the generation's; concatenated, never overwritten."""
        new = drawn.routing
        if new is None:
            return None
        start, held = drawn.routing_start, self.routing_start(drawn.weight_version)
        if start > held or start + len(new) != total:
            raise RecordError(
                f"routing rows {start} to {start + len(new)} do not continue {held} held rows to the {total} needed"
            )
        if held == 0 or self._rows is None:
            return _Span.of(new)
        return self._rows.extended(new[held - start :])


@dataclass(slots=True, eq=False)
class _Buffer:
    """A growing array of which the first `used` elements are taken and never change."""

    array: NDArray[Any]
    used: int


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """The first `length` elements of a buffer."""

    buffer: _Buffer
    length: int

    @classmethod
    def of(cls, first: NDArray[Any]) -> _Span:
        """A buffer of its own with room to grow."""
        array = np.empty((max(2 * len(first), ROOM), *first.shape[1:]), first.dtype)
        array[: len(first)] = first
        return cls(_Buffer(array, len(first)), len(first))

    def view(self) -> NDArray[Any]:
        view = self.buffer.array[: self.length]
        view.flags.writeable = False
        return view

    def extended(self, more: NDArray[Any]) -> _Span:
        """This span and `more`: in place where it ends its buffer and `more` has room, else in a copy."""
        array = self.buffer.array
        if more.shape[1:] != array.shape[1:] or more.dtype != array.dtype:
            form, known = f"{more.dtype}{list(more.shape[1:])}", f"{array.dtype}{list(array.shape[1:])}"
            raise RecordError(f"{form} appended to {known}")
        end = self.length + len(more)
        buffer = self.buffer
        if self.length < buffer.used or end > len(array):
            buffer = _Buffer(np.empty((max(2 * end, ROOM), *array.shape[1:]), array.dtype), 0)
            buffer.array[: self.length] = array[: self.length]
        buffer.array[self.length : end] = more
        buffer.used = end
        return _Span(buffer, end)
