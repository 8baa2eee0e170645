"""Programs of a box that are not root's: who they are by the box's own /etc, and how they are started.

posix_spawn cannot change its user, so this forks. The first process of a box has one thread; between fork and exec
only system calls are made.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Sequence
from typing import NamedTuple

Action = tuple[int, ...] | tuple[int, int, str, int, int]


class User(NamedTuple):
    """Whom a program is started as."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str


def _lines(path: str) -> list[list[str]]:
    """Of a file that programs of the box may have made anything: a pipe, say, that nobody writes to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(descriptor, errors="surrogateescape") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            return [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return []


def find(text: str) -> User:
    """Who `user` or `user:group` is, each a name or a number, in /etc/passwd and /etc/group.

    Raises:
        ValueError: there is no such user or group.
    """
    name, _, group = text.partition(":")
    entries = [fields for fields in _lines("/etc/passwd") if len(fields) >= 6]
    known = next((fields for fields in entries if name in (fields[0], fields[2])), None)
    if known is None and not name.isdecimal():
        raise ValueError(f"there is no user {name}")
    gid = int(known[3]) if known is not None else 0
    groups = [fields for fields in _lines("/etc/group") if len(fields) >= 4]
    if group:
        named = next((fields for fields in groups if group in (fields[0], fields[2])), None)
        if named is None and not group.isdecimal():
            raise ValueError(f"there is no group {group}")
        gid = int(group if named is None else named[2])
    if known is None:
        return User(name, int(name), gid, [gid], "/")
    further = [] if group else [int(fields[2]) for fields in groups if known[0] in fields[3].split(",")]
    return User(known[0], int(known[2]), gid, [gid, *further], known[5] or "/")


def is_mapped(uid: int) -> bool:
    """Whether this user namespace has such a user; one that was made without privileges has a single one."""
    with open("/proc/self/uid_map") as file:
        ranges = [[int(word) for word in line.split()] for line in file]
    return any(inside <= uid < inside + count for inside, _, count in ranges)


def spawn(
    user: User,
    program: str,
    argv: Sequence[str],
    env: dict[str, str],
    actions: Sequence[Action],
    default_signals: Sequence[int],
) -> int:
    """As os.posix_spawn in a session of its own, for another user; what cannot be started exits 126.

    Raises:
        ValueError: there can be no program of this user here.
    """
    if not is_mapped(user.uid):
        raise ValueError(f"user {user.name}: boxes have no user but root without privileges on the host")
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for action in actions:
            if action[0] == os.POSIX_SPAWN_OPEN:
                _, place, path, flags, mode = action
                opened = os.open(str(path), int(flags), int(mode))
                if opened != place:
                    os.dup2(opened, int(place))
                    os.close(opened)
            else:
                os.dup2(int(action[1]), int(action[2]))
        for number in default_signals:
            signal.signal(number, signal.SIG_DFL)
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
        os.execve(program, list(argv), env)
    finally:
        os._exit(126)
