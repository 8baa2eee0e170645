"""One box, built by a forked child of the zygote that ends as its pid 1.

Order matters: every mount is made while the child is still root of the zygote's user namespace, so the box's own root
owns neither its mounts nor its network; only then does the child enter a user namespace of its own, drop what
capabilities it may not keep, and install the system call filter that all programs of the box inherit.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
from typing import NamedTuple

from . import cgroups, kernel, seccomp
from .changes import HIDDEN, PRISTINE
from .userland import BOX, NEW, SHELL, VIEW_SHELL, Userland

HOME_FOLDERS = (
    "root",
    "home",
    "app",
    "opt",
    "srv",
    "mnt",
    "media",
    "run",
    "var",
    "var/tmp",
    "var/lib",
    "var/log",
    "var/cache",
)
MOUNT_POINTS = ("usr", "etc", "proc", "sys", "dev")
SECRET_FILES = ("kcore", "keys", "timer_list", "sysrq-trigger", "kallsyms", "kmsg", "sched_debug", "latency_stats")
SECRET_FOLDERS = ("acpi", "scsi")
READ_ONLY_FOLDERS = ("bus", "fs", "irq", "sys")
OPEN_FILES = 4096


class Order(NamedTuple):
    """What to build. `system` and `over` are mount namespaces of other boxes: whose system, whose files."""

    hostname: str
    disk_bytes: int
    inodes: int
    limits: cgroups.Limits
    groups: list[str]
    system: int | None
    over: int | None


class Tools(NamedTuple):
    """What the zygote prepared once for all boxes."""

    userland: Userland
    own_mounts: int
    last_capability: int
    filters: seccomp.Filters | None


class Handles(NamedTuple):
    """What the first process of a box keeps open.

    `uppers` are the folders that hold what is changed below /usr and /etc, `root` the one for everything else (None
    where a box began empty there); on `listener` the kernel asks about calls.
    """

    uppers: dict[str, int]
    root: int | None
    listener: int | None


class Lowers(NamedTuple):
    """Overlay lowers of a box; `root` is absent for one that starts empty."""

    usr: str
    etc: str
    root: str | None


def _borrow(order: Order, own_mounts: int) -> dict[str, int]:
    """Detached copies of the mounts of other boxes that this one is laid over."""
    trees: dict[str, int] = {}
    for namespace, names in ((order.system, ("usr", "etc", "root")), (order.over, ("root",))):
        if namespace is None:
            continue
        kernel.setns(namespace, kernel.NEWNS)
        for name in names:
            if name in trees:
                os.close(trees[name])
            trees[name] = kernel.clone_tree("/" if name == "root" else f"/{name}")
        kernel.setns(own_mounts, kernel.NEWNS)
    return trees


def _lay_out(order: Order, tools: Tools, trees: dict[str, int]) -> Lowers:
    """The box's own storage: one tmpfs whose size is its disk."""
    uid = tools.userland.root_uid
    options = f"size={order.disk_bytes},nr_inodes={order.inodes},mode=755,uid={uid},gid={uid}"
    kernel.mount("box", BOX, "tmpfs", kernel.NOSUID | kernel.NODEV, options)
    kernel.set_file_owner(uid, uid)
    for name in ("root", "root.work", "usr", "usr.work", "etc", "etc.work", "lower"):
        os.mkdir(f"{BOX}/{name}", 0o755)
    paths = {"usr": "/usr", "etc": "/etc"}
    for name in trees:
        paths[name] = f"{BOX}/lower/{name}"
        os.mkdir(paths[name])
    if order.over is not None or not trees:
        _fill_root(f"{BOX}/root", tools.userland, empty=not trees)
    kernel.set_file_owner(0, 0)
    if order.over is not None and uid:
        os.close(os.open(f"{BOX}/root{VIEW_SHELL}", os.O_CREAT | os.O_WRONLY, 0o711))
    if order.over is not None:
        for name in (*MOUNT_POINTS, *PRISTINE):
            os.setxattr(f"{BOX}/root/{name}", "trusted.overlay.opaque" if uid else "user.overlay.opaque", b"y")
    for name, tree in trees.items():
        kernel.attach_tree(tree, paths[name])
    return Lowers(paths["usr"], paths["etc"], paths.get("root"))


def _fill_root(root: str, userland: Userland, *, empty: bool) -> None:
    """The folders of a new root; over another box only those that must not be its."""
    for name in (*HOME_FOLDERS, *MOUNT_POINTS) if empty else (*MOUNT_POINTS, *PRISTINE):
        os.mkdir(f"{root}/{name}", 0o755)
    if empty:
        os.mkdir(f"{root}/tmp")
        for name in ("tmp", "var/tmp"):
            os.chmod(f"{root}/{name}", 0o1777)
        os.chmod(f"{root}/root", 0o700)
    else:
        for name in HIDDEN:
            os.mknod(f"{root}/{name}", stat.S_IFCHR, 0)  # a whiteout
    for name, target in userland.links:
        os.symlink(target, f"{root}/{name}")


def _overlay(lower: str, key: str, target: str, options: str) -> None:
    data = f"lowerdir={lower},upperdir={BOX}/{key},workdir={BOX}/{key}.work{options}"
    kernel.mount("overlay", target, "overlay", kernel.NOSUID | kernel.NODEV, data)


def _mount_all(lowers: Lowers, options: str, *, with_shell: bool) -> None:
    """The tree of the box at NEW."""
    if lowers.root is None:
        kernel.mount(f"{BOX}/root", NEW, None, kernel.BIND)
    else:
        _overlay(lowers.root, "root", NEW, options)
    _overlay(lowers.usr, "usr", f"{NEW}/usr", options)
    _overlay(lowers.etc, "etc", f"{NEW}/etc", options)
    kernel.mount("proc", f"{NEW}/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    kernel.mount("/dev", f"{NEW}/dev", None, kernel.BIND | kernel.REC)
    kernel.mount(
        "devpts", f"{NEW}/dev/pts", "devpts", kernel.NOSUID | kernel.NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    kernel.mount("shm", f"{NEW}/dev/shm", "tmpfs", kernel.NOSUID | kernel.NODEV, "size=64m,mode=1777")
    if with_shell:
        kernel.mount(SHELL, f"{NEW}{VIEW_SHELL}", None, kernel.BIND)
        flags = kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID | kernel.NODEV
        kernel.mount("none", f"{NEW}{VIEW_SHELL}", None, flags)
    _hide_kernel_files()


def _hide_kernel_files() -> None:
    proc = f"{NEW}/proc"
    for name in SECRET_FILES:
        if os.path.exists(f"{proc}/{name}"):
            kernel.mount("/dev/null", f"{proc}/{name}", None, kernel.BIND)
    for name in SECRET_FOLDERS:
        if os.path.isdir(f"{proc}/{name}"):
            kernel.mount("none", f"{proc}/{name}", "tmpfs", kernel.RDONLY, "size=4k")
    flags = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC
    for name in READ_ONLY_FOLDERS:
        path = f"{proc}/{name}"
        if os.path.isdir(path):
            kernel.mount(path, path, None, kernel.BIND | kernel.REC)
            kernel.mount("none", path, None, kernel.BIND | kernel.REMOUNT | kernel.RDONLY | flags)


def _enter_user_namespace(sync: socket.socket, privileged: bool) -> None:
    """A user namespace of this box; the zygote writes its map and keeps a handle on its mounts."""
    kernel.unshare(kernel.NEWUSER)
    sync.send(b"map")
    if sync.recv(8) != b"mapped":
        raise OSError(0, "the zygote did not map the box's users")
    if privileged:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _set_rlimits(limits: cgroups.Limits, without_groups: bool, disk_bytes: int) -> None:
    """Without control groups these are the only limits: processes a user, memory a process, bytes a file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if without_groups:
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.pids, limits.pids))
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk_bytes, disk_bytes))


def keep_only(descriptors: list[int]) -> None:
    """Close everything inherited from the zygote but these and the standard streams."""
    previous = 2
    for fd in sorted(descriptors):
        os.closerange(previous + 1, fd)
        previous = fd
    os.closerange(previous + 1, 1 << 20)


def become_box(order: Order, tools: Tools, sync: socket.socket) -> Handles:
    """Turn this fresh child, already pid 1 of a new pid namespace, into the first process of a box."""
    privileged = tools.userland.root_uid != 0
    cgroups.join(order.groups)
    trees = _borrow(order, tools.own_mounts)
    kernel.unshare(kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP)
    kernel.rename_process("init")
    kernel.set_hostname(order.hostname)
    kernel.raise_loopback()
    lowers = _lay_out(order, tools, trees)
    _mount_all(lowers, tools.userland.overlay_options, with_shell=privileged and order.over is not None)
    folder = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    uppers = {name: os.open(f"{BOX}/{name}", folder) for name in ("usr", "etc")}
    root = None if lowers.root is None else os.open(f"{BOX}/root", folder)
    kernel.enter_root(NEW)
    _enter_user_namespace(sync, privileged)
    os.setsid()
    os.umask(0o022)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities(tools.last_capability)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _set_rlimits(order.limits, not order.groups, order.disk_bytes)
    return Handles(uppers, root, None if tools.filters is None else seccomp.install(tools.filters))


def make_read_only(mounts: int, paths: list[str]) -> None:
    """In a child of the zygote: nothing in the box with these mounts can write below `paths` from now on."""
    kernel.setns(mounts, kernel.NEWNS)
    flags = kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID | kernel.NODEV
    for path in paths:
        kernel.mount(path, path, None, kernel.BIND)
        kernel.mount("none", path, None, flags)
