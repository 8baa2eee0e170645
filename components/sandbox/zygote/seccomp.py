"""The system call filter of a box: what configures the kernel, mounts, or makes namespaces is refused.

A deny list, because a terminal must run any program; what it leaves open is still bounded by the namespaces, which the
box does not own, and by the capabilities it does not have. Calls whose arguments cannot be inspected (clone3, io_uring)
answer ENOSYS, so that libraries fall back to those that can.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import platform
import struct
from typing import NamedTuple

from . import kernel

DENIED = {
    "x86_64": {
        "mount": 165, "umount2": 166, "pivot_root": 155, "swapon": 167, "swapoff": 168, "reboot": 169,
        "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175,
        "delete_module": 176, "quotactl": 179, "settimeofday": 164, "adjtimex": 159, "acct": 163, "syslog": 103,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "move_pages": 279, "vmsplice": 278,
        "kexec_load": 246, "kexec_file_load": 320, "finit_module": 313, "perf_event_open": 298, "setns": 308,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "clock_settime": 227, "clock_adjtime": 305, "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "pivot_root": 41, "swapon": 224, "swapoff": 225, "reboot": 142,
        "sethostname": 161, "setdomainname": 162, "init_module": 105, "delete_module": 106, "quotactl": 60,
        "settimeofday": 170, "adjtimex": 171, "acct": 89, "syslog": 116, "add_key": 217, "request_key": 218,
        "keyctl": 219, "unshare": 97, "move_pages": 239, "vmsplice": 75, "kexec_load": 104, "kexec_file_load": 294,
        "finit_module": 273, "perf_event_open": 241, "setns": 268, "open_by_handle_at": 265,
        "name_to_handle_at": 264, "clock_settime": 112, "clock_adjtime": 266, "bpf": 280, "userfaultfd": 282,
    },
}  # fmt: skip
DENIED_EVERYWHERE = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
TOLD = ("clock_settime", "settimeofday")
"""Refused like the others, by the box's first process, which keeps count: who turns a clock does so for a verifier."""
ABSENT = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKET = {"x86_64": 41, "aarch64": 198}
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020000
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: no VSOCK (the hypervisor), ALG or PACKET."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, ASK = 0x7FFF0000, 0x80000000, 0x7FC00000
SET_FILTER, NEW_LISTENER = 1, 8
RECEIVE, SEND = 0xC0502100, 0xC0182101
QUESTION = struct.Struct("QIIiI56x")
"""struct seccomp_notif: id, pid, flags, and of the call its number and architecture."""
ANSWER = struct.Struct("QqiI")
REFUSE, NOT_THERE = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16

Instruction = tuple[int, int, int, int]
Assembled = tuple["ctypes.Array[ctypes.c_char]", int]


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def supported() -> bool:
    """Whether this machine has a table."""
    return platform.machine() in DENIED


def program(machine: str, *, ask: bool = False) -> list[Instruction]:
    """The filter as BPF instructions (code, jump if true, jump if false, value). With `ask` TOLD ones are questions."""
    asked = {DENIED[machine][name] for name in TOLD} if ask else set()
    steps: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, REFUSE),
    ]
    for number in sorted([*DENIED[machine].values(), *DENIED_EVERYWHERE.values()]):
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ASK if number in asked else REFUSE)]
    for number in ABSENT.values():
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, NOT_THERE)]
    steps += [
        (EQUAL, 0, 4, CLONE[machine]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    steps += [(EQUAL, 0, len(FAMILIES) + 2, SOCKET[machine]), (LOAD, 0, 0, FIRST_ARGUMENT)]
    steps += [(EQUAL, len(FAMILIES) - place, 0, family) for place, family in enumerate(FAMILIES)]
    steps += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return steps


class Filters(NamedTuple):
    """The filter with and without questions, as the kernel reads it."""

    asking: Assembled
    plain: Assembled


def assemble(machine: str) -> Filters:
    """Both filters; done once, in the zygote."""
    return Filters(_assembled(program(machine, ask=True)), _assembled(program(machine)))


def _assembled(steps: list[Instruction]) -> Assembled:
    raw = b"".join(struct.pack("HBBI", *step) for step in steps)
    return ctypes.create_string_buffer(raw, len(raw)), len(steps)


def install(filters: Filters) -> int | None:
    """Filter this process and all its children, for good. Needs no_new_privs.

    Returns the descriptor on which the kernel asks; None where it cannot (an old one, or another listens already).
    """
    try:
        return _install(filters.asking, NEW_LISTENER)
    except OSError:
        _install(filters.plain, 0)
        return None


def _install(assembled: Assembled, flags: int) -> int:
    buffer, length = assembled
    fprog = Program(length, ctypes.cast(buffer, ctypes.c_void_p))
    number = kernel.syscall_number("seccomp")
    return kernel.checked(kernel.libc.syscall(number, SET_FILTER, flags, ctypes.byref(fprog)), "seccomp")


def question(listener: int) -> tuple[int, str, int] | None:
    """What the kernel asks: an identity to answer to, the call, and who makes it. None when nobody waits any more."""
    asked = bytearray(QUESTION.size)
    try:
        fcntl.ioctl(listener, RECEIVE, asked)
    except OSError:
        return None
    identity, pid, _, number, _ = QUESTION.unpack(asked)
    names = {DENIED[platform.machine()][name]: name for name in TOLD}
    return identity, names[number], pid


def refuse(listener: int, identity: int) -> None:
    """Answer a question; one whose asker has been killed needs no answer."""
    try:
        fcntl.ioctl(listener, SEND, ANSWER.pack(identity, 0, -errno.EPERM, 0))
    except OSError:
        return
