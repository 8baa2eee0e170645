"""Whether the disks of this installation have room: asked before anything starts, and when anything has failed.

A full disk shows itself in many ways, and most of them mislead: a database that answers 500, a service that is gone, a
log that stays empty. What is otherwise taken for a fault of the infrastructure is therefore asked about here first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.artifacts import store_url
from components.errors import Failure, JobFailed, NoSpaceError, failure_of, no_space
from tasks.site import Site

START_BYTES = 50_000_000
"""What services need in the state directory to start and to log for a while; a first campaign leaves half of it."""
_PROBE_BYTES = 64 * 1024
"""Enough for any document that a flow or a job writes before its results."""


def require_start(site: Site) -> None:
    """Refuses to start services where their databases and logs would soon fill the disk.

    Raises:
        NoSpaceError: the state directory has too little room.
    """
    free = shutil.disk_usage(_nearest(site.home)).free
    if free < START_BYTES:
        needed, found = START_BYTES // 1_000_000, free // 1_000_000
        raise NoSpaceError(f"state directory {site.home}: {found} MB are free, the services need {needed} MB")


def require(site: Site) -> None:
    """Refuses an installation that has a full disk.

    Raises:
        NoSpaceError: names the folder.
    """
    if (found := full(site)) is not None:
        raise found


def full(site: Site) -> NoSpaceError | None:
    """The first full disk of the installation: of its state directory, its store, or the jobs' scratch folders."""
    for name, folder in _folders(site):
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                os.posix_fallocate(probe.fileno(), 0, _PROBE_BYTES)
        except OSError as error:
            if (found := no_space(error, f"{name} {folder}")) is not None:
                return found
    return None


@contextmanager
def explaining(site: Site) -> Iterator[None]:
    """What fails within, and can be explained by a full disk, leaves as that.

    Raises:
        NoSpaceError: names the folder.
    """
    try:
        yield
    except Exception as error:  # The boundary: seen, explained or passed on.
        silent = isinstance(error, JobFailed) and not error.reason
        if (silent or failure_of(error) is Failure.INFRASTRUCTURE) and (found := full(site)) is not None:
            raise found from error
        raise


def _folders(site: Site) -> Iterator[tuple[str, Path]]:
    yield "state directory", _nearest(site.home)
    url = store_url(site.store_url)
    if "://" not in url:
        yield "artifact store", _nearest(Path(url))
    # `gettempdir` passes over a folder that cannot be written to, and what we start does not.
    yield "scratch folder", Path(os.environ.get("TMPDIR") or tempfile.gettempdir())


def _nearest(folder: Path) -> Path:
    """Itself, or the folder that it would be made in: a question makes none."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())
