"""What becomes of an answer that was aborted under way though nobody here asked for that.

| what came back                              | what is done                                                       |
|---------------------------------------------|--------------------------------------------------------------------|
| nothing drawn (aborted while it waited)     | drawn from the start                                               |
| ids, and the routing that goes with them    | kept; the rest is drawn after them, its routing from there on      |
| ids without routing (retracted, then aborted)| kept; the rest is drawn after them, all routing is captured again |
| ids of other weights than the rest          | dropped: an answer is of one version                               |

What is kept was drawn from the same distribution as it would have been in one piece. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.sampler.protocol import Generation


def routing_start_after(prompt_tokens: int, asked: int | None, pieces: Sequence[Generation]) -> int | None:
    """First row that the request after these pieces must return.

    Args:
        prompt_tokens: of the first request.
        asked: first row that the first request was to return; None for no capture.
    """
    if asked is None or not pieces or pieces[-1].routing is None:
        return asked
    return prompt_tokens + sum(len(piece.output_ids) for piece in pieces) - 1


def kept(pieces: Sequence[Generation], piece: Generation) -> tuple[Generation, ...]:
    """What to go on from after one more aborted piece."""
    if not len(piece.output_ids):
        return tuple(pieces)
    if pieces and pieces[-1].weight_version != piece.weight_version:
        return ()
    if piece.routing is None:  # none of it holds without its end: the next piece captures all
        return (*(replace(earlier, routing=None) for earlier in pieces), piece)
    return (*pieces, piece)


def joined(pieces: Sequence[Generation], last: Generation) -> Generation | None:
    """The whole answer; None when the pieces are of other weights than its end."""
    if not pieces:
        return last
    if any(piece.weight_version != last.weight_version for piece in pieces):
        return None
    whole = [*pieces, last]
    rows: list[NDArray[Any]] = [piece.routing for piece in whole if piece.routing is not None]
    first = next((piece for piece in whole if piece.routing is not None), last)
    return replace(
        last,
        output_ids=np.concatenate([piece.output_ids for piece in whole]),
        logprobs=np.concatenate([piece.logprobs for piece in whole]),
        routing=np.concatenate(rows) if last.routing is not None else None,
        routing_start=first.routing_start,
        cached_tokens=whole[0].cached_tokens,
    )
