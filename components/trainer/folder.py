"""Folders that appear whole or not at all.

Invariant: under its final name a folder is complete and on disk. It is written under a temporary name beside it, every
file and the folder are flushed, and one rename publishes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Gives a temporary folder to fill; it becomes `target` when the block ends without an error.

    An existing `target` is replaced: it is renamed away just before, and deleted just after.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unique = uuid.uuid4().hex[:12]
    fresh = target.parent / f".{target.name}.{unique}.new"
    stale = target.parent / f".{target.name}.{unique}.old"
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
        shutil.rmtree(stale, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
