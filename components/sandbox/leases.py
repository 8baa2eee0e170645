"""Who owns what a backend leaves outside its processes: control groups, and folders of boxes without isolation.

Invariant: a lease is on disk before anything it covers exists. A sweep removes what belongs to a lease whose owner has
ended, and nothing else: no process of that pid and start time, on the same boot and in the same pid namespace; or an
owner of another pid namespace, which cannot be seen, without a heartbeat for STALE_S.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from components.sandbox.zygote import cgroups, trees

log = logging.getLogger(__name__)
T = TypeVar("T")

SWEEP_PATIENCE_S = 2.0
LEASE = re.compile(r"(\d+)-(\d+)-(\d+)-[0-9a-f]{8}")
HEARTBEAT_S = 15.0
SWEEP_EVERY = 4
"""Heartbeats between two sweeps of a living backend, a minute: what others left does not wait for the next one to open.
A sweep takes 3 ms of the processor where 16 backends live."""
GONE = (errno.ENOENT, errno.ENODEV)
"""What is said of a control group that is no more, by its path and by one of its files that was open."""
STALE_S = 600.0
"""A job that stands still for less is alive: machines are paused, disks are slow."""


@dataclass(frozen=True)
class Owner:
    """One process for ever: pids are reused, a pid with its start time is not."""

    pid: int
    started: int
    boot: str
    pid_namespace: int


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which a process started; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(b")")[2].split()[19])


def current_owner() -> Owner:
    """This process."""
    pid = os.getpid()
    started = start_time(pid)
    assert started is not None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Owner(pid, started, boot, os.stat("/proc/self/ns/pid").st_ino)


def new_lease(owner: Owner) -> str:
    """A name that tells its owner, for the control groups of this boot."""
    return f"{owner.pid}-{owner.started}-{owner.pid_namespace}-{secrets.token_hex(4)}"


def is_orphan(owner: Owner, observer: Owner, silent_s: float) -> bool:
    """Whether the owner has ended: seen, or, of another pid namespace, not heard of for `silent_s` seconds."""
    if owner.boot != observer.boot:
        return True
    if owner.pid_namespace != observer.pid_namespace:
        return silent_s > STALE_S
    return start_time(owner.pid) != owner.started


def record(folder: Path, lease: str, owner: Owner) -> Path:
    """Write a lease, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{lease}.json"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(asdict(owner), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return path


def sweep(folder: Path, boxes: Path) -> list[str]:
    """Remove what ownerless leases left; returns their names."""
    observer = current_owner()
    swept = []
    for path in sorted(folder.glob("*.json")):
        try:
            owner = Owner(**json.loads(path.read_text()))
            silent_s = time.time() - path.stat().st_mtime
        except FileNotFoundError:  # another sweep was faster
            continue
        if not is_orphan(owner, observer, silent_s):
            continue
        if remove_groups(path.stem):
            trees.remove(boxes / path.stem)
            path.unlink(missing_ok=True)
            swept.append(path.stem)
    for lease in _ownerless_groups(observer):  # of leases that were lost with their folder
        if remove_groups(lease):
            swept.append(lease)
    for path in folder.glob("*.tmp"):  # of one who was killed before its lease stood
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()
    if swept:
        log.warning("removed what %d ended sandbox backend(s) left: %s", len(swept), ", ".join(swept))
    return swept


def _ownerless_groups(observer: Owner) -> list[str]:
    """Leases whose control groups are left, of whatever folder, by owners that have certainly ended."""
    hierarchies = cgroups.find() if os.geteuid() == 0 else None
    if hierarchies is None:
        return []
    found = {path.name for root in hierarchies.roots.values() for path in Path(root, cgroups.FAMILY).iterdir()}
    names = [match for match in map(LEASE.fullmatch, sorted(found)) if match is not None]
    return [
        match[0]
        for match in names
        if is_orphan(Owner(int(match[1]), int(match[2]), observer.boot, int(match[3])), observer, 0.0)
    ]


class Heartbeat:
    """Says that a backend is alive, and sweeps now and then, in a thread: an event loop may be busy for long."""

    def __init__(self, lease: Path, boxes: Path) -> None:
        self._lease = lease
        self._boxes = boxes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{lease.stem}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent; a sweep that is under way is not waited for."""
        self._ended.set()

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(HEARTBEAT_S):
            beats += 1
            try:
                os.utime(self._lease)
                if beats % SWEEP_EVERY == 0:
                    sweep(self._lease.parent, self._boxes)
            except OSError as error:  # a full or lost disk: told once more with every beat, and no reason to end
                log.warning("the heartbeat of %s failed: %s", self._lease.name, error)


def remove_groups(lease: str) -> bool:
    """End what still runs in the groups of a lease and remove them. False when they stay busy."""
    hierarchies = cgroups.find() if os.geteuid() == 0 else None
    if hierarchies is None:
        return True
    deadline = time.monotonic() + SWEEP_PATIENCE_S
    folders = [Path(group) for group in hierarchies.groups(lease)]
    while True:
        boxes = [box for folder in folders for box in _inner(folder)]
        for box in boxes:
            _kill_members(box)
        busy = cgroups.remove([*map(str, boxes), *map(str, folders)])
        if not busy:
            return True
        if time.monotonic() > deadline:
            log.warning("control groups of the ended lease %s are still busy", lease)
            return False
        time.sleep(0.01)


def _look(look: Callable[[], list[T]]) -> list[T]:
    """What is found in a control group, which another sweep may remove at any time: then nothing."""
    try:
        return look()
    except OSError as error:
        if error.errno not in GONE:
            raise
        return []


def _inner(group: Path) -> list[Path]:
    return _look(lambda: [path for path in group.iterdir() if path.is_dir()])


def _kill_members(group: Path) -> None:
    members = _look(lambda: (group / "cgroup.procs").read_text().split())
    for member in members:
        if member == "0":  # a process of a pid namespace that is not below ours; as a pid it would be our own group
            continue
        try:
            os.kill(int(member), signal.SIGKILL)
        except ProcessLookupError:
            continue
