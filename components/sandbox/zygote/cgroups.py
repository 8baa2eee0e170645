"""Memory, process and CPU limits of a box by control groups, version 1 or 2.

Every box of one backend has its group below `longshell/<lease>/`, so that a sweep can tell whose it was from the path
alone. The same code runs in the manager (host paths) and in the zygote (the same hierarchies bound below /cgroup).
"""

from __future__ import annotations

import os
from typing import NamedTuple

HOST_ROOT = "/sys/fs/cgroup"
FAMILY = "longshell"
CPU_PERIOD_US = 100_000
CHARGE_BYTES = 4 << 20
"""More than the kernel charges at once: a huge page, and what each processor holds ready."""


class Limits(NamedTuple):
    """What one box may use."""

    memory_bytes: int
    pids: int
    cpus: float


class Hierarchies(NamedTuple):
    """Where groups can be made: `unified` on version 2, one root a controller on version 1."""

    version: int
    roots: dict[str, str]

    def rebased(self, folder: str) -> Hierarchies:
        """The same hierarchies, bound below another folder under their controllers' names."""
        return Hierarchies(self.version, {name: f"{folder}/{name}" for name in self.roots})

    def groups(self, lease: str, box: str = "") -> list[str]:
        """The directories of a box, or of all boxes of a lease."""
        return [os.path.join(root, FAMILY, lease, box).rstrip("/") for root in self.roots.values()]


def _write(path: str, value: object) -> None:
    with open(path, "w") as file:
        file.write(str(value))


def _write_if_there(path: str, value: object) -> None:
    """For knobs that kernels are built without (swap accounting)."""
    try:
        _write(path, value)
    except FileNotFoundError:
        return
    except PermissionError:
        return


def find(root: str = HOST_ROOT) -> Hierarchies | None:
    """The writable hierarchies of this machine; None when memory or process limits cannot be set.

    Tried by making a group: access(2) answers yes on read-only mounts of containers.
    """
    controllers = f"{root}/cgroup.controllers"
    if os.path.exists(controllers):
        with open(controllers) as file:
            offered = set(file.read().split())
        found = Hierarchies(2, {"unified": root}) if {"memory", "pids"} <= offered else None
    else:
        roots = {
            name: f"{root}/{name}"
            for name in ("memory", "pids", "cpu")
            if os.path.exists(f"{root}/{name}/cgroup.procs")
        }
        found = Hierarchies(1, roots) if {"memory", "pids"} <= roots.keys() else None
    if found is None:
        return None
    try:
        for path in found.roots.values():
            os.makedirs(f"{path}/{FAMILY}", exist_ok=True)
            if found.version == 2:
                for parent in (path, f"{path}/{FAMILY}"):
                    _enable(parent)
    except OSError:
        return None
    return found


def _enable(parent: str) -> None:
    for controller in ("memory", "pids", "cpu"):
        _write_if_there(f"{parent}/cgroup.subtree_control", f"+{controller}")


def open_lease(hierarchies: Hierarchies, lease: str) -> None:
    """Make the group that holds all boxes of one backend."""
    for path in hierarchies.groups(lease):
        os.makedirs(path, exist_ok=True)
        if hierarchies.version == 2:
            _enable(path)


def create(hierarchies: Hierarchies, lease: str, box: str, limits: Limits) -> list[str]:
    """Make the groups of one box and set its limits."""
    paths = hierarchies.groups(lease, box)
    for path in paths:
        os.mkdir(path)
    by_name = dict(zip(hierarchies.roots, paths, strict=True))
    if hierarchies.version == 2:
        path = by_name["unified"]
        _write(f"{path}/memory.max", limits.memory_bytes)
        _write_if_there(f"{path}/memory.swap.max", 0)
        _write(f"{path}/pids.max", limits.pids)
        _write_if_there(f"{path}/cpu.max", f"{int(limits.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}")
        return paths
    _write(f"{by_name['memory']}/memory.limit_in_bytes", limits.memory_bytes)
    _write_if_there(f"{by_name['memory']}/memory.memsw.limit_in_bytes", limits.memory_bytes)
    _write(f"{by_name['pids']}/pids.max", limits.pids)
    if "cpu" in by_name:
        _write(f"{by_name['cpu']}/cpu.cfs_period_us", CPU_PERIOD_US)
        _write(f"{by_name['cpu']}/cpu.cfs_quota_us", int(limits.cpus * CPU_PERIOD_US))
    return paths


def join(paths: list[str]) -> None:
    """Move this process into the groups; its children are born there."""
    for path in paths:
        _write(f"{path}/cgroup.procs", 0)


def remove(paths: list[str]) -> list[str]:
    """Remove empty groups; returns those that still hold processes."""
    busy = []
    for path in paths:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            busy.append(path)
    return busy


def oom_kills(hierarchies: Hierarchies, lease: str, box: str) -> int:
    """How many processes of the box the kernel killed for memory so far."""
    if hierarchies.version == 2:
        path = f"{hierarchies.roots['unified']}/{FAMILY}/{lease}/{box}/memory.events"
    else:
        path = f"{hierarchies.roots['memory']}/{FAMILY}/{lease}/{box}/memory.oom_control"
    with open(path) as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def reached_limit(hierarchies: Hierarchies, lease: str, box: str) -> bool:
    """Whether the box ever came to its own limit. Where it did not, a kill is for what is above it: a container around
    all boxes, or the machine, has no memory left. Version 1 does not count every failure of the last charge."""
    if hierarchies.version == 1:
        folder = f"{hierarchies.roots['memory']}/{FAMILY}/{lease}/{box}"
        with open(f"{folder}/memory.max_usage_in_bytes") as most, open(f"{folder}/memory.limit_in_bytes") as limit:
            return int(most.read()) > int(limit.read()) - CHARGE_BYTES
    with open(f"{hierarchies.roots['unified']}/{FAMILY}/{lease}/{box}/memory.events") as file:
        return any(line.startswith(("max ", "oom ")) and int(line.split()[1]) > 0 for line in file)
