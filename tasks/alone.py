"""One process of a machine runs a flow run.

Prefect reports a killed process twice, and on a busy machine the second report comes when the run was resumed already:
it marks the run as crashed once more, and a second process is started for it beside the first. Invariant: of two
processes of one flow run the later one ends, without a word to the server, for the run is not over. The lock lives as
long as its process, however that ends. Workers on several machines are not kept apart.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from components.errors import ServiceError

PATIENCE_S = 20.0
"""A process that was told to end may need so long: its run is taken over then."""
_held: dict[Path, IO[str]] = {}
"""The locks of this process. A flow that calls another is two runs of one process."""


def take(run: str, home: Path, patience_s: float = PATIENCE_S) -> int | None:
    """Takes the flow run for this process; where another one has it and does not end, gives that one's id.

    Raises:
        ServiceError: the state directory cannot be written.
    """
    path = home / "runs" / f"{run}.lock"
    if path in _held:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+")
    except OSError as error:
        raise ServiceError(f"{path} cannot be written: {error.strerror}. Free it, or set LONGSHELL_HOME") from error
    deadline = time.monotonic() + patience_s
    while not _locked(lock):
        if time.monotonic() > deadline:
            lock.seek(0)
            holder = int(lock.read() or 0)  # 0: it has taken the lock in this instant.
            lock.close()
            return holder
        time.sleep(0.1)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    _held[path] = lock
    return None


def abandoned(home: Path) -> list[str]:
    """Flow runs that a process of this machine had, and none has now: most of them have ended as they should."""
    return [path.stem for path in sorted((home / "runs").glob("*.lock")) if _is_free(path)]


def _is_free(path: Path) -> bool:
    with path.open("a+") as lock:
        return _locked(lock)


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
