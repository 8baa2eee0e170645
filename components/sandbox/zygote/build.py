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

from . import cgroups, kernel, seccomp, userland, wire
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
CREATORS = 1 << 16
"""Above the first user of the boxes: from there on every box has a user of the host's, by its pid, who creates its user
namespace and is nobody otherwise. The kernel counts against that user what there is of a kind for each (inotify's
instances and watches, signals, locked memory), and all boxes of one would have to share it, with root if that is he."""
COUNTS = {
    "max_inotify_instances": 32, "max_inotify_watches": 16_384, "max_fanotify_groups": 32, "max_fanotify_marks": 16_384,
}  # fmt: skip
"""What a box may have of what the kernel counts, where all boxes are the same user's of the host."""
PROXY_PORT = 3128
SHELLS = (f"{NEW}/usr/bin/bash", f"{NEW}/bin/bash")


class Order(NamedTuple):
    """What to build. `system` and `over` are mount namespaces of other boxes: whose system, whose files."""

    hostname: str
    disk_bytes: int
    inodes: int
    limits: cgroups.Limits
    groups: list[str]
    system: int | None
    over: int | None
    image: Image
    proxy: bool
    """Whether a proxy of the manager's shall listen on the box's loopback."""


class Image(NamedTuple):
    """What a box is laid over where no other box is named; paths are the zygote's.

    `lowers` has the overlay lowers, the uppermost first, of every folder of the system that is mounted on its own, and
    of `root`, which has none for a box that starts empty. `links` are links in its root. `own` says that the system is
    not the host's. `records` are folders below other folders that belong to the system too, which views show as the
    image has them.
    """

    lowers: dict[str, list[str]]
    links: list[tuple[str, str]]
    own: bool
    records: list[str]


class Tools(NamedTuple):
    """What the zygote prepared once for all boxes."""

    userland: Userland
    own_mounts: int
    last_capability: int
    filters: seccomp.Filters | None


class Handles(NamedTuple):
    """What the first process of a box keeps open.

    `uppers` are the folders that hold what is changed below /usr and /etc, `storage` the one for everything else, and
    `root` the same (None where a box began empty there); on `listener` the kernel asks about calls, on `proxy` the
    manager's proxy listens.
    """

    uppers: dict[str, int]
    root: int | None
    storage: int
    listener: int | None
    proxy: int | None


def systems(order: Order) -> list[str]:
    """Folders of the box that are mounted on their own: /usr and /etc above all."""
    return [name for name in order.image.lowers if name != "root"]


def _borrow(order: Order, own_mounts: int) -> dict[str, int]:
    """Detached copies of the mounts of other boxes that this one is laid over."""
    trees: dict[str, int] = {}
    for namespace, names in ((order.system, (*systems(order), "root")), (order.over, ("root",))):
        if namespace is None:
            continue
        kernel.setns(namespace, kernel.NEWNS)
        for name in names:
            if name in trees:
                os.close(trees[name])
            trees[name] = kernel.clone_tree("/" if name == "root" else f"/{name}")
        kernel.setns(own_mounts, kernel.NEWNS)
    return trees


def _lay_out(order: Order, tools: Tools, trees: dict[str, int]) -> dict[str, str]:
    """The box's own storage: one tmpfs whose size is its disk. Returns the lowers of every mount."""
    uid = tools.userland.root_uid
    options = f"size={order.disk_bytes},nr_inodes={order.inodes},mode=755,uid={uid},gid={uid}"
    kernel.mount("box", BOX, "tmpfs", kernel.NOSUID | kernel.NODEV, options)
    kernel.set_file_owner(uid, uid)
    names = systems(order)
    for name in ("root", *names):
        os.mkdir(f"{BOX}/{name}", 0o755)
        os.mkdir(f"{BOX}/{name}.work", 0o755)
    os.mkdir(f"{BOX}/lower", 0o755)
    lowers = {name: ":".join(paths) for name, paths in order.image.lowers.items() if paths}
    for name in trees:
        lowers[name] = f"{BOX}/lower/{name}"
        os.mkdir(lowers[name])
    points = [*MOUNT_POINTS, *(name for name in names if name not in MOUNT_POINTS)]
    if order.over is not None or "root" not in lowers:
        _fill_root(f"{BOX}/root", points, order.image.links, empty="root" not in lowers)
    if order.image.own and "etc" not in trees:
        userland.write_network_names(f"{BOX}/etc")
    kernel.set_file_owner(0, 0)
    if order.over is not None:
        if uid:
            os.close(os.open(f"{BOX}/root{VIEW_SHELL}", os.O_CREAT | os.O_WRONLY, 0o711))
        for name in (*points, *PRISTINE):
            os.setxattr(f"{BOX}/root/{name}", "trusted.overlay.opaque" if uid else "user.overlay.opaque", b"y")
    for name, tree in trees.items():
        kernel.attach_tree(tree, lowers[name])
    return lowers


def _fill_root(root: str, points: list[str], links: list[tuple[str, str]], *, empty: bool) -> None:
    """The folders of a new root; over another box only those that must not be its."""
    for name in (*HOME_FOLDERS, *points) if empty else (*points, *PRISTINE):
        os.mkdir(f"{root}/{name}", 0o755)
    if empty:
        os.mkdir(f"{root}/tmp")
        for name in ("tmp", "var/tmp"):
            os.chmod(f"{root}/{name}", 0o1777)
        os.chmod(f"{root}/root", 0o700)
    else:
        for name in HIDDEN:
            os.mknod(f"{root}/{name}", stat.S_IFCHR, 0)  # a whiteout
    for name, target in links:
        os.symlink(target, f"{root}/{name}")


def _overlay(lower: str, key: str, target: str, options: str) -> None:
    data = f"lowerdir={lower},upperdir={BOX}/{key},workdir={BOX}/{key}.work{options}"
    kernel.mount("overlay", target, "overlay", kernel.NOSUID | kernel.NODEV, data)


def _mount_all(order: Order, lowers: dict[str, str], tools: Tools) -> None:
    """The tree of the box at NEW."""
    options, uid = tools.userland.overlay_options, tools.userland.root_uid
    if "root" not in lowers:
        kernel.mount(f"{BOX}/root", NEW, None, kernel.BIND)
    else:
        _overlay(lowers["root"], "root", NEW, options)
    kernel.set_file_owner(uid, uid)
    for name in MOUNT_POINTS:
        _make_folder(name)
    kernel.set_file_owner(0, 0)
    for name in systems(order):
        _overlay(lowers[name], name, f"{NEW}/{name}", options)
    if order.over is not None:
        _show_records(order, uid, options)
    kernel.mount("proc", f"{NEW}/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    kernel.mount("/dev", f"{NEW}/dev", None, kernel.BIND | kernel.REC)
    kernel.mount(
        "devpts", f"{NEW}/dev/pts", "devpts", kernel.NOSUID | kernel.NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    kernel.mount("shm", f"{NEW}/dev/shm", "tmpfs", kernel.NOSUID | kernel.NODEV, "size=64m,mode=1777")
    if uid and order.over is not None:
        kernel.mount(_own_shell() if order.image.own else SHELL, f"{NEW}{VIEW_SHELL}", None, kernel.BIND)
        flags = kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID | kernel.NODEV
        kernel.mount("none", f"{NEW}{VIEW_SHELL}", None, flags)
    _hide_kernel_files()


def _make_folder(path: str) -> None:
    """A real folder below NEW: what else stands on the way, a link above all, is removed."""
    place = NEW
    for name in path.split("/"):
        place = f"{place}/{name}"
        if os.path.islink(place) or (os.path.lexists(place) and not os.path.isdir(place)):
            os.unlink(place)
        if not os.path.lexists(place):
            os.mkdir(place, 0o755)


def _show_records(order: Order, uid: int, options: str) -> None:
    """The system's records as the image has them: a view whose /usr is pristine must not read of what it lacks."""
    pristine = f"{BOX}/lower/image"
    if order.image.records:
        image = order.image.lowers["root"]
        os.mkdir(pristine)
        if len(image) == 1:
            kernel.mount(image[0], pristine, None, kernel.BIND)
        else:
            kernel.mount("overlay", pristine, "overlay", kernel.RDONLY, f"lowerdir={':'.join(image)}{options}")
    for name in order.image.records:
        if not os.path.isdir(f"{pristine}/{name}") or os.path.realpath(f"{pristine}/{name}") != f"{pristine}/{name}":
            continue
        key = f"records/{name}"
        kernel.set_file_owner(uid, uid)
        os.makedirs(f"{BOX}/{key}", 0o755)
        os.makedirs(f"{BOX}/{key}.work", 0o755)
        _make_folder(name)
        kernel.set_file_owner(0, 0)
        _overlay(f"{pristine}/{name}", key, f"{NEW}/{name}", options)


def _own_shell() -> str:
    """A copy of the image's bash that belongs to nobody in the box. Its folders are those of the pristine system."""
    found = next(place for place in SHELLS if os.path.isfile(place))
    source = os.open(found, os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(f"{BOX}/shell", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o711)
    while os.sendfile(target, source, None, 1 << 24):
        pass
    os.close(source)
    os.close(target)
    return f"{BOX}/shell"


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


def _enter_user_namespace(sync: socket.socket, creator: int | None, counts: int) -> None:
    """A user namespace of this box; the zygote writes its map and keeps a handle on its mounts."""
    mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if creator is not None:
        kernel.become_user(creator)
    kernel.unshare(kernel.NEWUSER)
    wire.send(sync, {}, [mounts])
    os.close(mounts)
    if sync.recv(8) != b"mapped":
        raise OSError(0, "the zygote did not map the box's users")
    if creator is None:
        _limit_counts(counts)
    else:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _limit_counts(counts: int) -> None:
    """Of this user namespace, whose only user is root; `counts` is the folder of the kernel's limits."""
    for name, most in COUNTS.items():
        try:
            limit = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=counts)
        except FileNotFoundError:  # a kernel without it
            continue
        os.write(limit, str(most).encode())
        os.close(limit)


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
    listening = _listen() if order.proxy else None
    lowers = _lay_out(order, tools, trees)
    _mount_all(order, lowers, tools)
    folder = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    uppers = {name: os.open(f"{BOX}/{name}", folder) for name in systems(order)}
    storage = os.open(f"{BOX}/root", folder)
    counts = os.open("/proc/sys/user", folder)
    creator = tools.userland.root_uid + CREATORS + int(os.readlink("/proc/self")) if privileged else None
    kernel.enter_root(NEW)
    _enter_user_namespace(sync, creator, counts)
    os.close(counts)
    os.setsid()
    os.umask(0o022)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities(tools.last_capability)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _set_rlimits(order.limits, not order.groups, order.disk_bytes)
    listener = None if tools.filters is None else seccomp.install(tools.filters)
    return Handles(uppers, storage if "root" in lowers else None, storage, listener, listening)


def _listen() -> int:
    """A socket of this box's network on which somebody outside of it can answer."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", PROXY_PORT))
    listening.listen(64)
    return listening.detach()


def make_read_only(mounts: int, paths: list[str]) -> None:
    """In a child of the zygote: nothing in the box with these mounts can write below `paths` from now on."""
    kernel.setns(mounts, kernel.NEWNS)
    flags = kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID | kernel.NODEV
    for path in paths:
        kernel.mount(path, path, None, kernel.BIND)
        kernel.mount("none", path, None, flags)
