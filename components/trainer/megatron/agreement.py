"""Ranks that act together: all succeed, or all fail.

Invariant: when a block under `together` ends on one rank, it has ended on all of them; and it raises on every rank when
it failed on any, so that no rank goes on with what another does not have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from components.errors import CheckpointError
from components.trainer.folder import atomic_folder, scratch


@contextlib.contextmanager
def together(what: str) -> Iterator[None]:
    """Waits for every rank at the end of the block; raises on all of them when it failed on one.

    Raises:
        CheckpointError: on the ranks that did not fail, naming those that did.
    """
    error: BaseException | None = None
    try:
        yield
    except Exception as caught:  # raised below, when every rank knows
        error = caught
    flags = torch.zeros(dist.get_world_size())
    flags[dist.get_rank()] = float(error is not None)
    if torch.cuda.is_available():
        flags = flags.cuda()
    dist.all_reduce(flags)
    if error is not None:
        raise error
    if flags.any():
        failed = flags.nonzero().flatten().tolist()
        raise CheckpointError(f"{what}: failed on rank {', '.join(map(str, failed))}")


@contextlib.contextmanager
def shared_folder(target: Path, seal: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary folder that all ranks fill; it becomes `target` when every one of them has ended without an error.

    Args:
        target: the folder's final name.
        seal: what one rank adds when all have filled the folder.
    """
    leads = dist.get_rank() == 0
    with contextlib.ExitStack() as stack:
        fresh = stack.enter_context(atomic_folder(target)) if leads else scratch(target)
        dist.barrier()
        with together(f"writing {target}"):
            yield fresh
        if leads:
            seal(fresh)
    dist.barrier()
