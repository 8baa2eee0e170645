"""Brings task directories from elsewhere into a pool folder: folders of them, tar archives, or prefixes of a bucket.

Invariants: a pool folder appears whole, by one rename; what is in it was safe to copy (no link leads out of its task,
no device, no pipe) and could be loaded; every directory that is not in it has a reason. Content decides what a copy is,
not the name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import posixpath
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from components.artifacts import tree_at
from components.artifacts.manifest import stays_within
from components.errors import TaskError, no_space
from components.pool.bucket import SCHEME, fetch
from components.pool.task import load_task
from components.sandbox.archive import Archive, Bounds
from components.sandbox.unpack import MOST_FOLDERS, extract

LARGEST_TASK = 256 << 20
"""Bytes of all files of a task. More does not belong into a directory that is copied into boxes."""
LARGEST_ARCHIVE = 32 << 30
MOST_MEMBERS = 1_000_000
"""Fifteen thousand tasks have some two hundred thousand files."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


class Reason(StrEnum):
    """Why a directory is not taken in."""

    UNSAFE = "unsafe"
    UNUSABLE = "unusable"
    COPY = "copy"
    NAME_TAKEN = "name_taken"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A directory that is not in the pool, and why."""

    task: str
    reason: str
    detail: str

    def to_json(self) -> dict[str, str]:
        return {"task": shown(self.task), "reason": str(self.reason), "detail": shown(self.detail)}


def shown(text: str) -> str:
    """A text that quotes names of files, which need not be UTF-8, as one that is."""
    return text.encode("utf-8", "backslashreplace").decode()


def import_tasks(sources: Sequence[str | Path], folder: Path) -> list[LeftOut]:
    """Copies every usable task of `sources` into `folder`, replacing an earlier import.

    Args:
        sources: folders with one task directory a subfolder, task directories, or tar archives of either; by path, or
            as `s3://bucket/prefix`. Where two have a task of one name, or of one content, the first is taken.

    A member of an archive that leads out of it spoils the task that it belongs to, and no other.

    Raises:
        TaskError: a source is not there or is no folder or archive, it is too large or damaged, or no task could be
            taken in.
        StoreError: a bucket cannot be read.
        OSError: `folder` cannot be written.
    """
    building = folder.with_name(f".{folder.name}.importing")  # that of one who was killed is removed
    shutil.rmtree(building, ignore_errors=True)
    refused: list[LeftOut] = []
    try:
        taken = building / "tasks"
        taken.mkdir(parents=True)
        by_content: dict[str, str] = {}
        for number, source in enumerate(sources):
            tasks, spoiled = _tasks_of(source, building / f"source-{number}")
            refused += spoiled
            for task in tasks:
                reason = _take(task, taken, by_content)
                refused += [reason] if reason is not None else []
        if not by_content:
            reasons = [f"{each.task}: {each.reason}: {each.detail}" for each in refused[:10]]
            raise TaskError(", ".join(map(str, sources)), ["no task can be used", *reasons])
        shutil.rmtree(folder, ignore_errors=True)
        taken.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return refused


def _take(task: Path, folder: Path, by_content: dict[str, str]) -> LeftOut | None:
    """Copies one task; why not, where it is refused."""
    problem = (
        f"the name {task.name!r} is not of letters, digits, `.`, `_`, `-`" if not NAME.fullmatch(task.name) else None
    )
    problem = problem or unsafe(task)
    if problem is not None:
        return LeftOut(task.name, Reason.UNSAFE, problem)
    try:
        digest = load_task(task).ref.digest
    except TaskError as error:
        return LeftOut(task.name, Reason.UNUSABLE, "; ".join(error.problems))
    if digest in by_content:
        return LeftOut(task.name, Reason.COPY, f"has the content of {by_content[digest]}")
    if (folder / task.name).exists():
        return LeftOut(task.name, Reason.NAME_TAKEN, "a task of this name and another content was taken before it")
    shutil.copytree(task, folder / task.name, symlinks=True)
    by_content[digest] = task.name
    return None


def unsafe(task: Path) -> str | None:
    """What in a directory cannot be copied without harm; None when all of it can."""
    if task.is_symlink():
        return "is a link"
    root, size = task.resolve(), 0
    for path in _below(task):
        place, found = path.relative_to(task), path.lstat()
        if not _is_text(str(place)):
            return f"{os.fsencode(place)!r}: the name is no UTF-8"
        if len(place.parts) > MOST_FOLDERS:  # Python copies and removes folders by recursion.
            return f"{place.parts[0]}: has more than {MOST_FOLDERS} folders in each other"
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(path)
            if not _is_text(target):
                return f"{place}: is a link to what is no UTF-8"
            try:
                inside = path.resolve(strict=False).is_relative_to(root) and stays_within(str(place), target)
            except (OSError, RuntimeError):
                return f"{place}: is a link that leads nowhere but to itself"
            if not inside:
                return f"{place}: is a link that leads out of the task, or climbs on its way ({target})"
        elif not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return f"{place}: is neither a file, a folder nor a link"
        elif stat.S_ISREG(found.st_mode):
            size += found.st_size
            if size > LARGEST_TASK:
                return f"{place}: more than {LARGEST_TASK >> 20} MiB of files up to here"
    return None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        yield from (Path(root, name) for name in [*sorted(folders), *sorted(names)])


def _tasks_of(source: str | Path, scratch: Path) -> tuple[list[Path], list[LeftOut]]:
    """The task directories of a source, and those that lack a part which could not be brought here."""
    if str(source).startswith(SCHEME):
        return _of_bucket(str(source), scratch)
    path = Path(source)
    if path.is_dir():
        return _task_folders(path), []
    if not (path.is_file() and path.name.endswith(ARCHIVES)):
        raise TaskError(str(path), [f"is neither a folder nor an archive ({', '.join(ARCHIVES)})"])
    return _of_archive(path, scratch)


def _of_bucket(url: str, scratch: Path) -> tuple[list[Path], list[LeftOut]]:
    """Of a prefix, its folders and the archives that lie directly under it; of a folder in a store, that folder's."""
    if (stored := tree_at(url, LARGEST_ARCHIVE)) is not None:
        return _task_folders(stored), []
    refused = [LeftOut(key, Reason.UNSAFE, why) for key, why in fetch(url, scratch, LARGEST_ARCHIVE)]
    archives = sorted(path for path in scratch.iterdir() if path.is_file() and path.name.endswith(ARCHIVES))
    tasks = _task_folders(scratch)
    for archive in archives:
        more, spoiled = _of_archive(archive, scratch.with_name(f"{scratch.name}.{archive.name}"))
        tasks, refused = [*tasks, *more], [*refused, *spoiled]
    return tasks, refused


def _of_archive(source: Path, scratch: Path) -> tuple[list[Path], list[LeftOut]]:
    scratch.mkdir()
    try:
        with _content(source) as content, Archive(content, Bounds(MOST_MEMBERS, LARGEST_ARCHIVE)) as archive:
            archive.getmembers()  # before any is unpacked: to read on may take days
            refused = [LeftOut(name, Reason.UNSAFE, why) for name, why in _unpack(archive, scratch)]
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if no_space(error) is not None:
            raise
        raise TaskError(str(source), [f"cannot be unpacked: {error}"]) from error
    return _whole(source, scratch, refused)


def _content(source: Path) -> io.BufferedIOBase:
    """What is in a file, by how it begins. What is none of these is a tar, or nothing."""
    with source.open("rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(source)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(source)
    if start == b"\xfd7zXZ\0":
        return lzma.LZMAFile(source)
    return source.open("rb")


def _unpack(archive: Archive, folder: Path) -> Iterator[tuple[str, str]]:
    """Unpacks what stays within `folder`; gives every other member and why it was left out."""
    left_out: dict[str, str] = {}
    for member in archive:
        if (reason := extract(archive, member, folder, left_out)) is not None:
            left_out[posixpath.normpath(member.name)] = reason
            yield member.name, f"the archive's member cannot be unpacked: {reason}"


def _whole(source: Path, scratch: Path, refused: list[LeftOut]) -> tuple[list[Path], list[LeftOut]]:
    """Of an unpacked archive, the tasks that lack nothing. What belongs to no task is told with the archive's name."""
    tasks = _task_folders(scratch)
    spoiled: dict[str, LeftOut] = {}
    for each in refused:
        place = scratch / each.task
        task = next((task for task in tasks if task in (place, *place.parents) and ".." not in place.parts), None)
        name = source.name if task is None else task.name
        spoiled.setdefault(name, LeftOut(name, each.reason, f"{each.task}: {each.detail}"))
    return [task for task in tasks if task.name not in spoiled], list(spoiled.values())


def _may_be_task(path: Path) -> bool:
    """A folder, or a link that leads nowhere: who put it there meant one."""
    return path.is_dir() or (path.is_symlink() and not path.exists())


def _task_folders(folder: Path) -> list[Path]:
    """The folder itself where it is a task; else its subfolders, or those of the only one that it has."""
    if (folder / "task.toml").is_file():
        return [folder]
    inside = sorted(path for path in folder.iterdir() if _may_be_task(path) and not path.name.startswith("."))
    if len(inside) == 1 and not any((inside[0] / name).exists() for name in ("task.toml", "instruction.md")):
        return _task_folders(inside[0])
    return inside
