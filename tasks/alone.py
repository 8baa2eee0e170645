"""One process of a machine runs a flow run.

Prefect reports a killed process twice, and on a busy machine the second report comes when the run was resumed already:
it marks the run as crashed once more, and a second process is started for it beside the first. Invariant: of two
processes of one flow run the later one ends, without a word to the server, for the run is not over. The lock lives as
long as its process, however that ends. Workers on several machines are not kept apart.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

_held: dict[Path, IO[str]] = {}
"""The locks of this process. A flow that calls another is two runs of one process."""


def take(run: str, home: Path) -> int | None:
    """Takes the flow run for this process; where another one has it, gives that one's id."""
    path = home / "runs" / f"{run}.lock"
    if path in _held:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = int(lock.read() or 0)  # 0: it has taken the lock in this instant.
        lock.close()
        return holder
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    _held[path] = lock
    return None
