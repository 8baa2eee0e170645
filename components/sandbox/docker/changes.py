"""What an agent changed in a container, out of the engine's list: what its view shows, and what is held against it.

Invariant: a view is a new container of the same image with everything that changed but the system and its records, so
the two lists together are the engine's list without those.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from components.sandbox.contract import SYSTEM_FOLDERS
from components.sandbox.docker.profile import TOOLS
from components.sandbox.zygote import changes

SYSTEM = frozenset({*SYSTEM_FOLDERS, *changes.PRISTINE, *changes.HIDDEN, TOOLS[1:], ".dockerenv"})
TOLD_FOLDERS = frozenset(SYSTEM_FOLDERS) - {"boot", "dev", "proc", "run", "sys"}
"""The rest of the system is told by the box's first process, as for every backend."""
REMOVED = 2
ABOVE_RECORDS = {str(folder) for name in changes.RECORDS for folder in PurePosixPath(f"/{name}").parents}


class Changes(NamedTuple):
    """What a view is brought (paths, folders before what is in them) and rid of, and what it does not show."""

    present: list[str]
    removed: list[str]
    reverted: list[str]


def sort(found: Iterable[tuple[str, int]]) -> Changes:
    """Paths with the kinds that an engine gives (0 modified, 1 added, 2 removed)."""
    listed = sorted(found)
    holders = {path.rpartition("/")[0] for path, _ in listed}
    present, removed, reverted = [], [], []
    for path, kind in listed:
        top = path.split("/", 2)[1]
        if _is_record(path):
            continue
        if top not in SYSTEM:
            present.append(path)  # a folder that was removed may stand there again
            removed += [path] if kind == REMOVED and path not in ABOVE_RECORDS else []
        elif top in TOLD_FOLDERS and path != f"/{top}" and path not in holders and not _is_cached(path):
            reverted.append(changes.printable(f"{'removed' if kind == REMOVED else 'changed'} {path}"))
    return Changes(present, removed, reverted)


def _is_record(path: str) -> bool:
    """Whether it tells of the system, which a view has as the image does."""
    return any(f"{path}/".startswith(f"/{name}/") for name in changes.RECORDS)


def _is_cached(path: str) -> bool:
    return any(changes.CACHED.search(each) for each in (path, f"{path}/"))
