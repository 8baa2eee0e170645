"""Folders that nobody may write to any more, though it be root: immutable, by a capability that no program has.

An overlay keeps the mark for itself (Linux 5.15), so the engine can remove the layer below it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
IMMUTABLE = 0x10


def make_read_only(root: str) -> None:
    """Mark everything below `root`, what is inside first; OSError where the file system cannot."""
    for folder, _, names in os.walk(root, topdown=False, followlinks=False):
        for name in names:
            if not os.path.islink(f"{folder}/{name}"):
                _mark(f"{folder}/{name}")
        _mark(folder)
    try:
        os.close(os.open(root, os.O_WRONLY | os.O_TMPFILE, 0o600))
    except PermissionError:
        return
    raise OSError(errno.EOPNOTSUPP, "the mark does not hold", root)


def keep_names(root: str) -> None:
    """Mark the folders below `root` alone: to mark a file an overlay copies it, which for a whole system is too much.

    Nothing can then be added, removed or put in another's place; a file that is written to has another time of change.
    """
    for folder, _, _ in os.walk(root, followlinks=False):
        _mark(folder)


def _mark(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = bytearray(8)
        fcntl.ioctl(fd, GET_FLAGS, flags)
        fcntl.ioctl(fd, SET_FLAGS, struct.pack("q", struct.unpack("q", flags)[0] | IMMUTABLE))
    finally:
        os.close(fd)
