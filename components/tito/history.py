"""The token history of one running trajectory: what the sampler is given next, without re-encoding anything.

Invariant: the next prompt is the previous prompt, the sampled ids and the ids of what was appended since, in this
order; nothing in it is ever rewritten. So every boundary of the trajectory is strict and its re-encoded context is 0.

Prompts and routing handed out are read-only views of one growing buffer: a trajectory of T turns takes memory for its
tokens, not for the sum of its prompts. A buffer that is full is left to its views and continued in one twice its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.errors import RecordError
from components.records import Float32, Int32, Routing, Sampling, Turn

ROOM = 1_024
"""Elements a new buffer has at least."""


class Drawn(Protocol):
    """What a sampler returned for one prompt (`components.sampler.Generation`)."""

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
    """Append-only ids, and routing rows, of one trajectory. Compaction starts a new one."""

    def __init__(self, prompt_ids: Sequence[int] | Int32) -> None:
        self._ids = _Buffer(np.asarray(prompt_ids, dtype=np.int32))
        self._rows: _Buffer | None = None
        self._version: int | None = None

    def __len__(self) -> int:
        return self._ids.length

    @property
    def prompt_ids(self) -> Int32:
        """The next prompt, read-only."""
        return self._ids.view()

    def routing_start(self, weight_version: int) -> int:
        """First position whose routing a generation under these weights must return: earlier rows are held already."""
        return self._rows.length if self._rows is not None and self._version == weight_version else 0

    def append_context(self, ids: Sequence[int] | Int32) -> None:
        """Appends what the policy did not sample: an observation, a template's glue."""
        self._ids.extend(np.asarray(ids, dtype=np.int32))

    def append_turn(self, generation: Drawn, sampling: Sampling = Sampling()) -> Turn:  # noqa: B008 (frozen)
        """Appends what was drawn for `prompt_ids`, and returns the turn with the routing of all its positions.

        Raises:
            RecordError: log-probs or routing rows do not fit the ids. The history is left as it was.
        """
        turn = Turn(
            prompt_ids=self.prompt_ids,
            completion_ids=np.asarray(generation.output_ids, dtype=np.int32),
            logprobs=np.asarray(generation.logprobs, dtype=np.float32),
            routing=None,
            weight_version=generation.weight_version,
            finish_reason=generation.finish_reason,
            sampling=sampling,
        )
        rows = self._joined_rows(generation, len(turn.prompt_ids) + len(turn.completion_ids) - 1)
        self._ids.extend(turn.completion_ids)
        self._rows, self._version = rows, generation.weight_version
        return turn if rows is None else replace(turn, routing=rows.view())

    def _joined_rows(self, generation: Drawn, total: int) -> _Buffer | None:
        """Rows held of these weights, followed by the generation's; concatenated, never overwritten."""
        new = generation.routing
        if new is None:
            return None
        start, held = generation.routing_start, self.routing_start(generation.weight_version)
        if start > held or start + len(new) != total:
            raise RecordError(
                f"routing rows {start} to {start + len(new)} do not continue {held} held rows to the {total} needed"
            )
        if held == 0 or self._rows is None:
            return _Buffer(new)
        self._rows.extend(new[held - start :])
        return self._rows


class _Buffer:
    """A growing array whose views stay valid and unchanged."""

    def __init__(self, first: NDArray[Any]) -> None:
        self._array = np.empty((max(2 * len(first), ROOM), *first.shape[1:]), first.dtype)
        self._array[: len(first)] = first
        self.length = len(first)

    def view(self) -> NDArray[Any]:
        view = self._array[: self.length]
        view.flags.writeable = False
        return view

    def extend(self, more: NDArray[Any]) -> None:
        if more.shape[1:] != self._array.shape[1:] or more.dtype != self._array.dtype:
            form, known = f"{more.dtype}{list(more.shape[1:])}", f"{self._array.dtype}{list(self._array.shape[1:])}"
            raise RecordError(f"{form} appended to {known}")
        end = self.length + len(more)
        if end > len(self._array):
            grown = np.empty((2 * end, *self._array.shape[1:]), self._array.dtype)
            grown[: self.length] = self._array[: self.length]
            self._array = grown
        self._array[self.length : end] = more
        self.length = end
