"""Folders that programs of a box have filled: copied, looked through and removed, whatever they hold.

Invariant: nothing here follows a link, recurses, or makes a path of more than one name, so that no depth and no length
of a tree is too much; and no more than a few descriptors are open at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
COPY_BYTES = 1 << 24


class Cursor:
    """A folder of a tree, from which one goes down by a name and up again."""

    def __init__(self, root: int) -> None:
        self.folder = os.dup(root)
        self._above: list[os.stat_result] = []

    def down(self, name: str) -> None:
        """Into a folder, which is none but itself."""
        held = os.fstat(self.folder)
        inner = os.open(name, FOLDER, dir_fd=self.folder)
        os.close(self.folder)
        self.folder = inner
        self._above.append(held)

    def up(self) -> None:
        """To where the last folder was entered from.

        Raises:
            OSError: somebody has moved it meanwhile.
        """
        outer = os.open("..", FOLDER, dir_fd=self.folder)
        os.close(self.folder)
        self.folder = outer
        if not os.path.samestat(os.fstat(outer), self._above.pop()):
            raise OSError(errno.ESTALE, "a folder was moved while it was read")

    def close(self) -> None:
        os.close(self.folder)


def copy(
    source: int,
    target: int,
    leaf: Callable[[int, str, os.stat_result, int], None],
    finish: Callable[[int, int], None],
    without: frozenset[str] = frozenset(),
) -> None:
    """What is in one folder, but for some names, into another.

    Args:
        leaf: copies what is no folder: from this folder, of this name, so described, into that folder.
        finish: gives a folder the attributes of this one, once everything is in it.
    """
    here, there = Cursor(source), Cursor(target)
    names = [name for name in os.listdir(source) if name not in without]
    above: list[list[str]] = []
    try:
        while True:
            if not names:
                finish(here.folder, there.folder)
                if not above:
                    return
                here.up()
                there.up()
                names = above.pop()
                continue
            name = names.pop()
            info = os.stat(name, dir_fd=here.folder, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                leaf(here.folder, name, info, there.folder)
                continue
            os.mkdir(name, 0o700, dir_fd=there.folder)
            here.down(name)
            there.down(name)
            above.append(names)
            names = os.listdir(here.folder)
    finally:
        here.close()
        there.close()


def copy_bytes(source: int, target: int) -> None:
    """What was written of a file. Its holes stay holes: a box's disk, which limits it, does not count them."""
    end = 0
    while (start := next_data(source, end)) is not None:
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < end and (sent := os.sendfile(target, source, start, min(COPY_BYTES, end - start))):
            start += sent
    os.ftruncate(target, os.fstat(source).st_size)


def next_data(source: int, at: int) -> int | None:
    """Where the next bytes that were written begin; None where nothing but a hole follows."""
    try:
        return os.lseek(source, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def everything(root: int) -> Iterator[os.stat_result]:
    """Of everything in a folder."""
    cursor = Cursor(root)
    names = os.listdir(root)
    above: list[list[str]] = []
    try:
        while names or above:
            if not names:
                cursor.up()
                names = above.pop()
                continue
            name = names.pop()
            info = os.stat(name, dir_fd=cursor.folder, follow_symlinks=False)
            yield info
            if stat.S_ISDIR(info.st_mode):
                cursor.down(name)
                above.append(names)
                names = os.listdir(cursor.folder)
    finally:
        cursor.close()


def remove(path: str | os.PathLike[str]) -> None:
    """A folder and everything in it. What cannot be removed stays, and is not told."""
    try:
        root = os.open(path, FOLDER)
    except OSError:
        return
    try:
        _empty(root)
    finally:
        os.close(root)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _empty(root: int) -> None:
    cursor = Cursor(root)
    names = os.listdir(root)
    above: list[tuple[list[str], str]] = []
    try:
        while names or above:
            if not names:
                cursor.up()
                names, name = above.pop()
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=cursor.folder)
                continue
            name = names.pop()
            if _unlinked(name, cursor.folder):
                continue
            with contextlib.suppress(OSError):
                _open_up(name, cursor.folder)
                cursor.down(name)
                above.append((names, name))
                names = os.listdir(cursor.folder)
    except OSError:  # a folder was moved meanwhile: the rest is nobody's business any more
        return
    finally:
        cursor.close()


def _unlinked(name: str, folder: int) -> bool:
    """Whether it was no folder, and is gone."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _open_up(name: str, folder: int) -> None:
    """Let its owner empty a folder, whatever its mode was; what is none stays as it is."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
    finally:
        os.close(found)
