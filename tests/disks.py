"""Small file systems that really fill up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PAGE = os.sysconf("SC_PAGE_SIZE")


class SmallDisk:
    """A tmpfs of a few MB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Takes all space but `leave` bytes, rounded down to pages."""
        self.free()
        disk = os.statvfs(self.folder)
        taken = disk.f_bavail * disk.f_frsize - leave // _PAGE * _PAGE
        with self._filler.open("wb") as file:
            if taken:
                os.posix_fallocate(file.fileno(), 0, taken)

    def free(self) -> None:
        """Gives the space back."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A small file system mounted at `folder`; the test is skipped where that cannot be had."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "longshell-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk needs root and mount(8): {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
