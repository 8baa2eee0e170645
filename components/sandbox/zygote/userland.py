"""The zygote's own root: the few parts of the host a box is built from, and nothing else.

Invariant: after `prepare` no path of the host is reachable from the zygote but those it bound here (/usr and the folder
of images read-only, a generated /etc, device nodes, /proc, its control groups). A box is built from this root, so it
cannot show more.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import NamedTuple

from . import cgroups, kernel

ETC_ALLOWED = (
    "alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates", "ca-certificates.conf", "debian_version",
    "host.conf", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs",
    "lsb-release", "magic", "mime.types", "networks", "nsswitch.conf", "os-release", "perl", "profile", "profile.d",
    "protocols", "python3", "services", "shells", "ssl", "terminfo", "timezone", "vim",
)  # fmt: skip
ETC_GENERATED = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
    "gitconfig": "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n",
}
LARGEST_ETC_FILE = 4 << 20
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
TOP_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
BOX, NEW, IMAGES = "/box", "/new", "/images"
SHELL, VIEW_SHELL = "/shell", "/run/bash"
"""A bash that a box may run and not read, for it belongs to nobody there: the kernel then lets no program of a box look
into it. Where it lies in the zygote's root, and in a view's."""


class Userland(NamedTuple):
    """What every box is built from."""

    root_uid: int
    """The uid, as the zygote sees it, that is root in a box."""
    overlay_options: str
    links: tuple[tuple[str, str], ...]
    """Top-level symlinks of a merged-/usr system."""
    hierarchies: cgroups.Hierarchies | None


def _copy(source: str, target: str) -> None:
    """Copy a readable file, symlink or folder; what cannot be read or is private stays away."""
    try:
        info = os.lstat(source)
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISDIR(info.st_mode):
            os.mkdir(target, 0o755)
            for name in os.listdir(source):
                _copy(f"{source}/{name}", f"{target}/{name}")
        elif stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH and info.st_size <= LARGEST_ETC_FILE:
            with open(source, "rb") as old, open(target, "wb") as new:
                new.write(old.read())
            os.chmod(target, info.st_mode & 0o755)
    except (FileNotFoundError, PermissionError):
        return


def _make_etc(target: str) -> None:
    os.mkdir(target, 0o755)
    names = [*ETC_ALLOWED, *(name for name in os.listdir("/etc") if name.startswith("python3."))]
    for name in names:
        if os.path.lexists(f"/etc/{name}"):
            _copy(f"/etc/{name}", f"{target}/{name}")
    for name, text in ETC_GENERATED.items():
        with open(f"{target}/{name}", "w") as file:
            file.write(text)
    os.symlink("/proc/mounts", f"{target}/mtab")


def _make_dev(target: str) -> None:
    """Device nodes; bound from the host where the zygote may not make them."""
    os.mkdir(target, 0o755)
    kernel.mount("dev", target, "tmpfs", kernel.NOSUID | kernel.NOEXEC, "mode=755,size=64k,nr_inodes=64")
    for name in DEVICES:
        path = f"{target}/{name}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev)
            os.chmod(path, 0o666)
            if name != "tty":  # it opens only where there is a controlling terminal
                os.close(os.open(path, os.O_RDONLY | os.O_NOCTTY))
        except PermissionError:
            if not os.path.exists(path):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            kernel.mount(f"/dev/{name}", path, None, kernel.BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{target}/{name}", 0o755)
    os.symlink("pts/ptmx", f"{target}/ptmx")
    os.symlink("/proc/self/fd", f"{target}/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{target}/{name}")
    # Shared by all boxes, so none may write to it. (Writing to a device is no write to its file system.)
    flags = kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kernel.NOEXEC
    kernel.mount("none", target, None, flags)


def _mapped_namespace(first_uid: int, count: int) -> int:
    """A user namespace that maps 0 to `first_uid`, held by its descriptor only."""
    ready, proceed = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.unshare(kernel.NEWUSER)
        os.write(ready[1], b"r")
        os.read(proceed[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    write_maps(pid, first_uid, count)
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    os.write(proceed[1], b"p")
    os.waitpid(pid, 0)
    for fd in (*ready, *proceed):
        os.close(fd)
    return namespace


def write_maps(pid: int, first_uid: int, count: int) -> None:
    """Map root of a child's new user namespace to `first_uid`."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"0 {first_uid} {count}")


def become_namespace_root() -> None:
    """Without privileges: a user namespace in which this user is root."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEWUSER | kernel.NEWNS)
    with open("/proc/self/setgroups", "w") as file:
        file.write("deny")
    for name, own in (("uid_map", uid), ("gid_map", gid)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(f"0 {own} 1")


def write_network_names(etc: str) -> None:
    """What every box says of its own name and network, whatever its image says."""
    for name in ("hosts", "hostname", "resolv.conf"):
        with open(f"{etc}/{name}", "w") as file:
            file.write(ETC_GENERATED[name])


def _bind(source: str, target: str, root_uid: int, count: int, idmap: bool) -> None:
    """A folder with its owners shifted to the box's; where the kernel cannot, plainly: then nobody in a box owns it."""
    os.mkdir(target, 0o755)
    if not (root_uid and idmap):
        kernel.mount(source, target, None, kernel.BIND | kernel.REC)
        return
    tree = kernel.clone_tree(source)
    namespace = _mapped_namespace(root_uid, count)
    kernel.idmap_tree(tree, namespace)
    kernel.attach_tree(tree, target)
    os.close(namespace)


def prepare(
    staging: str,
    images: str | None,
    root_uid: int,
    uid_count: int,
    idmap: bool,
    hierarchies: cgroups.Hierarchies | None,
) -> Userland:
    """Build the zygote's root on an empty folder, in a mount namespace of its own, and enter it."""
    privileged = root_uid != 0
    if privileged:
        kernel.unshare(kernel.NEWNS)
    kernel.make_private()
    kernel.mount("zygote", staging, "tmpfs", kernel.NOSUID, "mode=755,size=64m")
    os.umask(0o022)
    _bind("/usr", f"{staging}/usr", root_uid, uid_count, idmap)
    if images is not None:
        _bind(images, staging + IMAGES, root_uid, uid_count, idmap)
    _make_etc(f"{staging}/etc")
    if privileged:
        _give(f"{staging}/etc", root_uid)
    _make_dev(f"{staging}/dev")
    os.mkdir(f"{staging}/proc")
    kernel.mount("/proc", f"{staging}/proc", None, kernel.BIND | kernel.REC)
    if privileged:
        shutil.copyfile("/usr/bin/bash", staging + SHELL)
        os.chmod(staging + SHELL, 0o711)
    if hierarchies is not None:
        os.mkdir(f"{staging}/cgroup")
        for name, path in hierarchies.roots.items():
            os.mkdir(f"{staging}/cgroup/{name}")
            kernel.mount(path, f"{staging}/cgroup/{name}", None, kernel.BIND)
    for folder in (BOX, NEW):
        os.mkdir(staging + folder)
    links = tuple((name, os.readlink(f"/{name}")) for name in TOP_LINKS if os.path.islink(f"/{name}"))
    kernel.enter_root(staging)
    options = "" if privileged else ",userxattr"
    return Userland(root_uid, options, links, None if hierarchies is None else hierarchies.rebased("/cgroup"))


def _give(path: str, uid: int) -> None:
    os.chown(path, uid, uid, follow_symlinks=False)
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            _give(f"{path}/{name}", uid)
