"""Linux calls that Python 3.11's standard library lacks, through ctypes. Errors are OSError with the call's name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, REC, PRIVATE = 4096, 16384, 1 << 18
DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_CAPBSET_DROP = 1, 4, 15, 24
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
CAP_AMBIENT_CLEAR_ALL = 4

AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_IDMAP = 1, 0x00100000

# Numbers up to 423 differ between machines; from 424 on they are the same everywhere.
SYSCALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126, "seccomp": 317},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91, "seccomp": 277},
}
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40

KEPT_CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
}
"""What `apt`, `su`, `chown` and a web server on port 80 need inside the box. Nothing that configures a kernel."""

libc = ctypes.CDLL(None, use_errno=True)
libc_holding_lock = ctypes.PyDLL(None, use_errno=True)


class MountAttr(ctypes.Structure):
    """struct mount_attr of mount_setattr(2)."""

    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def syscall_number(name: str) -> int:
    """The number of a machine-dependent call; a machine without a table is refused rather than guessed."""
    table = SYSCALLS.get(platform.machine())
    if table is None:
        raise OSError(0, f"no system call table for {platform.machine()}")
    return table[name]


def silence_streams() -> None:
    """Point the standard streams at the /dev/null of the current root."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def checked(result: int, what: str) -> int:
    """`result`, or the OSError that errno describes."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), f"unshare {flags:#x}")


def fork_into(flags: int) -> int:
    """os.fork whose child is the first process of new namespaces, without a process in between.

    unshare + fork would change the zygote's own "namespace for children", which an unprivileged zygote cannot change
    back. What os.fork does around the call is done here by the same functions of Python's C interface.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(libc_holding_lock.syscall(syscall_number("clone"), ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone {flags:#x}: {os.strerror(code)}")
    return pid


def setns(fd: int, kind: int) -> None:
    checked(libc.setns(fd, kind), f"setns {kind:#x}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    encoded_kind = None if kind is None else kind.encode()
    encoded_data = None if data is None else os.fsencode(data)
    result = libc.mount(os.fsencode(source), os.fsencode(target), encoded_kind, ctypes.c_ulong(flags), encoded_data)
    checked(result, f"mount {kind or 'bind'} {source} on {target}")


def make_private() -> None:
    """Cut every mount of this namespace off from its peers."""
    mount("none", "/", None, REC | PRIVATE)


def enter_root(new_root: str) -> None:
    """Make `new_root` (a mount) the root and let go of the old tree."""
    os.chdir(new_root)
    checked(libc.syscall(syscall_number("pivot_root"), b".", b"."), "pivot_root")
    checked(libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def prctl(option: int, value: int = 0) -> None:
    checked(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def clone_tree(path: str) -> int:
    """A detached copy of the mount at `path`, to be attached in another mount namespace (Linux 5.2)."""
    return checked(
        libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(path), OPEN_TREE_CLONE | os.O_CLOEXEC), f"open_tree {path}"
    )


def attach_tree(tree: int, target: str) -> None:
    """Attach a detached mount at `target` and close its descriptor."""
    result = libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    checked(result, f"move_mount to {target}")
    os.close(tree)


def idmap_tree(tree: int, userns: int) -> None:
    """Shift the owners of a detached mount by the map of `userns` and make it read-only (Linux 5.12)."""
    attributes = MountAttr(MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY, 0, 0, userns)
    result = libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes))
    checked(result, "mount_setattr idmap")


def set_file_owner(uid: int, gid: int) -> None:
    """Owner of the files this process creates from now on."""
    libc.setfsuid(uid)
    libc.setfsgid(gid)


def become_user(uid: int) -> None:
    """Another user, with the capabilities that this one has."""
    prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setresuid(uid, uid, uid)


def set_hostname(name: str) -> None:
    encoded = name.encode()
    checked(libc.sethostname(encoded, len(encoded)), "sethostname")


def raise_loopback() -> None:
    """Bring `lo` up in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP | IFF_RUNNING, bytes(14)))


def drop_capabilities(last_capability: int) -> None:
    """Keep only KEPT_CAPABILITIES, in the bounding set too."""
    kept = set(KEPT_CAPABILITIES.values())
    for capability in range(last_capability + 1):
        if capability not in kept:
            prctl(PR_CAPBSET_DROP, capability)
    prctl(PR_CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL)
    mask = sum(1 << capability for capability in kept)
    header = struct.pack("II", 0x20080522, 0)
    data = struct.pack("IIIIII", mask, mask, 0, 0, 0, 0)
    checked(libc.syscall(syscall_number("capset"), header, data), "capset")


def rename_process(name: str) -> None:
    """Overwrite this process's command line: `ps` in a box must not show where the host keeps its programs."""
    prctl_name = ctypes.create_string_buffer(name.encode()[:15])
    checked(libc.prctl(PR_SET_NAME, prctl_name, 0, 0, 0), "prctl name")
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if start and end > start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name.encode(), min(len(name), end - start - 1))


def keep_to_oneself(capabilities: dict[str, int]) -> None:
    """Have KEPT_CAPABILITIES and these, and leave only the former to whatever is run from here."""
    for capability in capabilities.values():
        prctl(PR_CAPBSET_DROP, capability)
    prctl(PR_CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL)
    mask = sum(1 << capability for capability in {*KEPT_CAPABILITIES.values(), *capabilities.values()})
    header = struct.pack("II", 0x20080522, 0)
    data = struct.pack("IIIIII", mask, mask, 0, 0, 0, 0)
    checked(libc.syscall(syscall_number("capset"), header, data), "capset")
