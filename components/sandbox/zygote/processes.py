"""Which processes belong to what, read from /proc, and how to end them.

A program may leave its process group (setsid), its parent (double fork) and its session. What it can hardly shed is the
mark in its environment, so a timed-out command is hunted by all four, again and again until nothing is left.
"""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

from .changes import printable

ROUNDS = 50
PAUSE_S = 0.002


class Process(NamedTuple):
    """One line of /proc."""

    pid: int
    parent: int
    group: int
    session: int
    state: str


def listing() -> dict[int, Process]:
    """Every visible process."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(name)
        found[pid] = Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode())
    return found


def descendants(ancestor: int, table: dict[int, Process]) -> set[int]:
    """Children of `ancestor`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    open_ends = [ancestor]
    while open_ends:
        for child in children.get(open_ends.pop(), ()):
            if child not in found:
                found.add(child)
                open_ends.append(child)
    return found


def names(pids: set[int]) -> list[str]:
    """What these processes call themselves; those that have ended meanwhile, or are dead, not at all."""
    found = []
    for pid in sorted(pids):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                head, _, rest = file.read().rpartition(b")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if rest.split()[0] not in (b"Z", b"X"):
            found.append(printable(os.fsdecode(head.partition(b"(")[2])))
    return found


def _marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def kill(pids: set[int]) -> None:
    """Of those that have ended meanwhile nothing is said."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def end_command(leader: int, mark: bytes, spared: set[int]) -> None:
    """Kill a command with everything it started, however that hid; `spared` are leaders of other commands."""
    own = os.getpid()
    for _ in range(ROUNDS):
        table = {pid: process for pid, process in listing().items() if process.state not in "ZX"}
        victims = {process.pid for process in table.values() if leader in (process.pid, process.group, process.session)}
        others = (descendants(own, table) - victims) & table.keys()
        victims |= {pid for pid in others if _marked(pid, mark)}
        for victim in list(victims):
            victims |= descendants(victim, table)
        victims -= {own, *spared}
        if not victims:
            return
        kill(victims)
        time.sleep(PAUSE_S)


def end_descendants() -> None:
    """Kill everything below this process (a subreaper), for boxes without a pid namespace."""
    own = os.getpid()
    for _ in range(ROUNDS):
        victims = descendants(own, listing())
        if not victims:
            return
        kill(victims)
        reap_dead()
        time.sleep(PAUSE_S)


def end_namespace() -> None:
    """Kill every process of this pid namespace but its pid 1, which is us. One call: nothing can fork past it."""
    if os.getpid() != 1:
        raise OSError(0, "only pid 1 may end its namespace")
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def reap_dead() -> dict[int, int]:
    """Wait for every child that has ended: pid to exit code (128 + signal for a killed one)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = code if code >= 0 else 128 - code
