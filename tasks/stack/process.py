"""Processes of the stack: started in a session of their own, recognised by pid and start time, ended completely.

A pid alone names nothing: it is reused. Everything a service starts inherits `LONGSHELL_STACK`, so that what is left of
a service whose main process was killed is still found, and nothing else is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "LONGSHELL_STACK"
_SAME_START_S = 0.05
"""Start times are read from the kernel in ticks of 10 ms."""


@dataclass(frozen=True)
class Identity:
    """One process, for ever: no later process with the same pid equals it."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Identity:
        """The process that has this pid now."""
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The process if it still runs."""
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.started) < _SAME_START_S
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def spawn(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Identity:
    """Starts a service that outlives us, its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        # SIGINT restored: started in the background of a script it would be ignored, and Prefect turns SIGTERM into it.
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return Identity.of(process.pid)


def marked(mark: str) -> list[psutil.Process]:
    """Processes that were started by the stack with this mark, or by one of its processes."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end(identities: Sequence[Identity], mark: str, *, grace_s: float = 20.0) -> None:
    """SIGTERM to the services, and after the grace SIGKILL to whatever carries the mark."""
    mains = [process for identity in identities if (process := identity.process())]
    for process in mains:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _gone(mains, grace_s)
    left = marked(mark)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _gone(left, 5.0)


def _gone(processes: Sequence[psutil.Process], timeout_s: float) -> None:
    """Waits; children of ours are reaped."""
    deadline = time.monotonic() + timeout_s
    alive = list(processes)
    while alive and time.monotonic() < deadline:
        _, alive = psutil.wait_procs(alive, timeout=0.2)
        alive = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
