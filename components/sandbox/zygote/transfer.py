"""Part of one box's files, by their paths, into another box of the same image.

The walk of an engine's list of changes names a folder before what is in it, and no path of it leads through a link; so
what is unpacked in that order replaces whatever of the image stands in its way, and follows nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable
from typing import Any, BinaryIO

from . import trees

PIECE_BYTES = 1 << 20
MOST_PATH = 4000
"""Bytes of a path. The kernel takes 4,095; a longer one, which programs reach in steps, is left out."""
RUNS, SIZE = "LONGSHELL.runs", "LONGSHELL.size"
"""Of a file with holes, which an archive has without them: where what was written of it begins, and how long it is."""
UNKNOWN, NO_TEXT = "\ufffd", re.compile("[\udc80-\udcff]")


class _Sender:
    """A file to write to, that goes out in pieces."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def write(self, data: bytes) -> int:
        self._send(bytes(data))
        return len(data)


class _Receiver:
    """A file to read from, that comes in pieces."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._held = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        while len(self._held) < size and not self._ended:
            piece = self._receive()
            self._ended = not piece
            self._held += piece
        data, self._held = self._held[:size], self._held[size:]
        return data

    def finish(self) -> None:
        """Take what is left, so that the next message is one."""
        while not self._ended:
            self._ended = not self._receive()


class _Written:
    """A file to read from, without its holes."""

    def __init__(self, file: BinaryIO, runs: list[tuple[int, int]]) -> None:
        self._file = file
        self._runs = list(runs)
        self._read = 0

    def read(self, size: int) -> bytes:
        if not self._runs:
            return b""
        start, length = self._runs[0]
        data = os.pread(self._file.fileno(), min(size, length - self._read), start + self._read)
        self._read += len(data)
        if self._read == length:
            del self._runs[0]
            self._read = 0
        return data if len(data) == size or not data else data + self.read(size - len(data))


def pack(paths: list[str], folders: list[str], send: Callable[[bytes], None]) -> list[str]:
    """Send what stands at these paths: no folder's contents, no sockets, no devices.

    What stands at one of `folders` and is none, but a link perhaps, is not sent, and given back: the other box has what
    its image has there, and what is below it. Nor is what has too long a path. Holes of files are not sent.
    """
    sender: Any = _Sender(send)
    long = [path for path in paths if len(os.fsencode(path)) > MOST_PATH]
    paths = [path for path in paths if path not in {*long}]
    left = [path for path in paths if path in folders and os.path.lexists(path) and not _is_folder(path)]
    with tarfile.open(fileobj=sender, mode="w|", bufsize=PIECE_BYTES, format=tarfile.PAX_FORMAT) as archive:
        for path in _found([path for path in paths if path not in left]):
            try:
                entry = archive.gettarinfo(path, arcname=path)
            except FileNotFoundError:
                continue
            if entry is None or (entry.isdev() and not entry.isfifo()):
                continue
            entry.uname = entry.gname = ""
            if entry.isreg():
                with open(path, "rb") as file:
                    runs = _runs(file.fileno())
                    _leave_out_holes(entry, runs)
                    written: Any = _Written(file, runs)
                    archive.addfile(entry, written)
            else:
                archive.addfile(entry)
    return [*left, *long]


def _runs(file: int) -> list[tuple[int, int]]:
    """Where what was written of a file begins, and how much that is."""
    found = []
    end = 0
    while (start := trees.next_data(file, end)) is not None:
        end = os.lseek(file, start, os.SEEK_HOLE)
        found.append((start, end - start))
    return found


def _leave_out_holes(entry: tarfile.TarInfo, runs: list[tuple[int, int]]) -> None:
    held = sum(length for _, length in runs)
    if held < entry.size:
        entry.pax_headers = {RUNS: json.dumps(runs), SIZE: str(entry.size)}
        entry.size = held


def _found(paths: list[str]) -> list[str]:
    """What is meant by an engine's paths: it puts one sign in the place of every byte that is no text."""
    found: dict[str, None] = {}
    for path in paths:
        places = ["/"]
        for part in path.strip("/").split("/"):
            if UNKNOWN in part:
                places = [os.path.join(place, name) for place in places for name in _alike(place, part)]
            else:
                places = [os.path.join(place, part) for place in places]
        found |= dict.fromkeys(places)
    return list(found)


def _alike(folder: str, shown: str) -> list[str]:
    try:
        return [name for name in sorted(os.listdir(folder)) if NO_TEXT.sub(UNKNOWN, name) == shown]
    except OSError:
        return []


def remove(paths: list[str]) -> None:
    """Remove what stands at these paths, whatever it is."""
    for path in _found(paths):
        try:
            info = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISDIR(info.st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def unpack(receive: Callable[[], bytes]) -> None:
    """Write what `pack` sent, until an empty piece."""
    source: Any = _Receiver(receive)
    folders: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=PIECE_BYTES) as archive:
            archive.errorlevel = 1
            archive.extraction_filter = lambda entry, _: entry  # these are the agent's files, in the agent's places
            for entry in archive:
                path = f"/{entry.name}"
                if os.path.lexists(path) and not (entry.isdir() and _is_folder(path)):
                    remove([path])
                if RUNS in entry.pax_headers:
                    _write_with_holes(archive, entry, path)
                    continue
                archive.extract(entry, "/", set_attrs=not entry.isdir(), numeric_owner=True)
                if entry.isdir():
                    folders.append(entry)
            for entry in reversed(folders):
                os.chown(f"/{entry.name}", entry.uid, entry.gid, follow_symlinks=False)
                os.chmod(f"/{entry.name}", entry.mode)
                os.utime(f"/{entry.name}", (entry.mtime, entry.mtime), follow_symlinks=False)
    finally:
        source.finish()


def _write_with_holes(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
    source = archive.extractfile(entry)
    assert source is not None, "it is a file"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(target, "wb") as file:
        for start, length in json.loads(entry.pax_headers[RUNS]):
            file.seek(start)
            while length:
                piece = source.read(min(length, PIECE_BYTES))
                length -= file.write(piece)
        file.truncate(int(entry.pax_headers[SIZE]))
        file.flush()
        os.chown(target, entry.uid, entry.gid)
        os.chmod(target, entry.mode)
        os.utime(target, (entry.mtime, entry.mtime))


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
