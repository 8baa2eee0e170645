"""What tests ask of ranks."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from components.errors import RecordError


def total(stage: dict[str, Any], value: float) -> float:
    """Sum over ranks of value + rank, by a collective."""
    tensor = torch.tensor(value + dist.get_rank())
    dist.all_reduce(tensor)
    return float(tensor)


def keep(stage: dict[str, Any], key: str, value: Any) -> Any:
    """What the stage held under the key; it now holds the value."""
    before = stage.get(key)
    stage[key] = value
    return before


def describe(stage: dict[str, Any], value: Any) -> tuple[str, list[int], bool]:
    """Of an array: dtype, shape, whether it may be written."""
    return str(value.dtype), list(value.shape), bool(value.flags.writeable)


def double(stage: dict[str, Any], arrays: list[Any]) -> list[Any]:
    return [np.asarray(array) * 2 for array in arrays]


def refuse(stage: dict[str, Any], rank: int | None, *, collective: bool) -> None:
    """Raises on one rank, or on all; the others may be waiting for it in a collective."""
    if rank is None or dist.get_rank() == rank:
        raise RecordError(f"refused by rank {dist.get_rank()}")
    if collective:
        dist.barrier()


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def refuse_strangely(stage: dict[str, Any]) -> None:
    raise Unpicklable(1, 2)


def die(stage: dict[str, Any], rank: int, words: str) -> None:
    """One rank is killed; the others wait for it in a collective."""
    if dist.get_rank() == rank:
        print(words, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def stop(stage: dict[str, Any], rank: int) -> None:
    """One rank stands still for ever; the others wait for it in a collective."""
    if dist.get_rank() == rank:
        time.sleep(3_600)
    dist.barrier()


def held(stage: dict[str, Any]) -> list[tuple[int, int]]:
    """Of the actor and the critic on this rank: parameters that have weights, and that have moments."""
    from components.trainer.megatron.remote import TRAINER  # Megatron is imported for seconds, for this alone.

    trainer = stage[TRAINER]
    counts = []
    for network in (trainer.actor, trainer.critic):
        moments = [s["exp_avg"] for part in network.optimizer._parts for s in part.outer.optimizer.state.values()]
        counts.append((sum(p.numel() for p in network.parameters().values()), sum(m.numel() for m in moments)))
    return counts
