"""Folders that appear whole or not at all.

Invariant: under its final name a folder is complete and on disk. It is written under a temporary name beside it, every
file and the folder are flushed, and one rename publishes it. One process writes a folder at a time; what a killed one
left behind is removed by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Gives a temporary folder to fill; it becomes `target` when the block ends without an error.

    An existing `target` is replaced: it is renamed away just before, and deleted just after. A process killed between
    the two renames leaves it under its other name; `recover` brings it back.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    fresh, stale = scratch(target), _beside(target, "old")
    for leftover in (fresh, stale):
        if leftover.exists():
            shutil.rmtree(leftover)
    fresh.mkdir()
    try:
        yield fresh
        for path in (*fresh.rglob("*"), fresh):
            _flush(path)
        if target.exists():
            target.rename(stale)
        fresh.rename(target)
        _flush(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        recover(target)  # a process that is told to stop may be told so between the two renames
        shutil.rmtree(stale, ignore_errors=True)


def scratch(target: Path) -> Path:
    """Where `atomic_folder` has `target` filled; other processes may fill it too, while its block lasts."""
    return _beside(target, "new")


def recover(target: Path) -> None:
    """Brings a folder back whose writer was killed between the two renames. Readers call it; it deletes nothing."""
    stale = _beside(target, "old")
    if stale.exists() and not target.exists():
        stale.rename(target)


def _beside(target: Path, role: str) -> Path:
    return target.parent / f".{target.name}.{role}"


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
