"""Digest manifests: what a stored folder has, and what is in its files.

The digest of a folder is the digest of its manifest, so that one short name stands for every byte below it. Links that
stay within the folder are kept as links, and folders with nothing in them as such: a task's digest covers both. A
manifest may be a stranger's: whatever one that was read names lies below the folder, no link in it leads out, and
nothing lies below a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from components.errors import DamagedError, StoreError

_BLOCK = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and content digest of one file, and whether it is a program: the bit that a task's digest covers too."""

    size: int
    sha256: str
    executable: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies below a folder, by its path from there in POSIX form.

    Attributes:
        files: regular ones, in order.
        links: to what they say.
        folders: those with nothing in them.
        others: pipes, sockets and devices, which nobody opens: one may never end, or never begin.
    """

    files: Sequence[str]
    links: Mapping[str, str]
    folders: Sequence[str]
    others: Sequence[str]

    def with_digests(self, files: Mapping[str, FileDigest]) -> Manifest:
        """The manifest of it."""
        return Manifest(files, self.links, frozenset(self.folders))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The same of a stored folder, with the digests of the files."""

    files: Mapping[str, FileDigest]
    links: Mapping[str, str]
    folders: frozenset[str]


def contents_of(folder: Path) -> Contents:
    """What lies below `folder`. No link is followed."""
    files: list[str] = []
    links: dict[str, str] = {}
    empty: list[str] = []
    others: list[str] = []
    for parent, folders, names in os.walk(folder):
        place = Path(parent).relative_to(folder)
        for name in (*folders, *names):
            path, kind = (place / name).as_posix(), os.lstat(os.path.join(parent, name)).st_mode
            if stat.S_ISLNK(kind):
                links[path] = os.readlink(os.path.join(parent, name))
            elif not stat.S_ISDIR(kind):
                (files if stat.S_ISREG(kind) else others).append(path)
        if not folders and not names and place.parts:
            empty.append(place.as_posix())
    return Contents(sorted(files), links, empty, others)


def contents_to_keep(folder: Path) -> Contents:
    """What of `folder` a store keeps: a link that leads out of it counts as the file at its end.

    Raises:
        StoreError: there is no file at its end; or something is neither a file, a folder nor a link.
    """
    found = contents_of(folder)
    if found.others:
        raise StoreError(f"{folder / min(found.others)} is neither a file, a folder nor a link: remove it")
    out = led_out(found)
    if (lost := next((path for path in out if not (folder / path).is_file()), None)) is not None:
        raise StoreError(f"{folder / lost} is a link out of the folder, to no file ({found.links[lost]}): remove it")
    within = {path: target for path, target in found.links.items() if path not in out}
    return Contents(sorted([*found.files, *out]), within, found.folders, [])


def led_out(contents: Contents) -> list[str]:
    """The links that lead out of their folder, or could."""
    return [path for path, target in contents.links.items() if not stays_within(path, target)]


def stays_within(path: str, target: str) -> bool:
    """Whether a link at `path` in a folder leads to no place outside of it, whatever other such links are there.

    It begins at a true folder, climbs first, at most to the folder, and then only descends, through such links at most.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    climbs = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
    return not target.startswith("/") and climbs <= path.count("/") and ".." not in steps[climbs:]


def digest_of(stream: BinaryIO, sink: BinaryIO | None = None) -> FileDigest:
    """Reads the file `stream` to its end, copying it into `sink` when one is given."""
    sha, size = hashlib.sha256(), 0
    while block := stream.read(_BLOCK):
        sha.update(block)
        size += len(block)
        if sink is not None:
            sink.write(block)
    return FileDigest(size, sha.hexdigest(), bool(os.fstat(stream.fileno()).st_mode & 0o100))


def dump(manifest: Manifest) -> bytes:
    """The canonical bytes of a manifest: three words of a file, one of a link, none of an empty folder."""
    rows: dict[str, list[Any]] = {
        **{path: [item.size, item.sha256, item.executable] for path, item in manifest.files.items()},
        **{path: [target] for path, target in manifest.links.items()},
        **{path: [] for path in manifest.folders},
    }
    return json.dumps(dict(sorted(rows.items())), separators=(",", ":")).encode()


def parse(data: bytes) -> Manifest:
    """The inverse of `dump`.

    Raises:
        DamagedError: something in it would lie or lead outside of its folder, or could not exist.
        StoreError: these are not the bytes of a manifest of this version.
    """
    try:
        rows = {path: tuple(row) for path, row in json.loads(data).items()}
        files = {path: _digest(*row) for path, row in rows.items() if len(row) > 1}
        links = {path: _target(*row) for path, row in rows.items() if len(row) == 1}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError("the manifest of a stored folder was written by another version, or is damaged") from error
    folders = frozenset(path for path, row in rows.items() if not row)
    if (strange := next((path for path in rows if not _is_below(path, links.keys() | folders)), None)) is not None:
        raise DamagedError(f"the manifest of a stored folder names {strange[:200]!a}, which is no file below it")
    if (out := next((path for path, target in links.items() if not stays_within(path, target)), None)) is not None:
        raise DamagedError(f"the manifest of a stored folder has {out[:200]!a}, a link that leads out of it")
    return Manifest(files, links, folders)


def _digest(size: Any, sha256: Any, executable: Any) -> FileDigest:
    if type(size) is not int or size < 0 or not _SHA256.fullmatch(sha256) or type(executable) is not bool:
        raise ValueError("no digest of a file")
    return FileDigest(size, sha256, executable)


def _target(target: Any) -> str:
    if not target or not _is_name(target):
        raise ValueError("nothing that a link can say")
    return str(target)


def _is_below(path: str, barred: Set[str]) -> bool:
    """Whether a path is in the form of `contents_of`, which leads nowhere else, and through none that is barred."""
    steps = path.split("/")
    if not _is_name(path) or any(step in ("", ".", "..") for step in steps):
        return False
    return not barred or not any("/".join(steps[:count]) in barred for count in range(1, len(steps)))


def _is_name(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def lay(manifest: Manifest, folder: Path) -> None:
    """Makes the links and the empty folders, where the files lie already: nothing is written through a link."""
    for path in manifest.folders:
        (folder / path).mkdir(parents=True)
    for path, target in manifest.links.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(target)


def difference(manifest: Manifest, folder: Path) -> str | None:
    """What differs between `folder` and its manifest, in words; None when nothing does."""
    found = contents_of(folder)
    expected = _kinds(manifest.files, manifest.links, manifest.folders)
    present = _kinds(found.files, found.links, found.folders) | dict.fromkeys(found.others, "")
    if missing := sorted(expected.keys() - present.keys()):
        return f"{missing[0]} is missing"
    if foreign := sorted(present.keys() - expected.keys()):
        return f"{foreign[0]} does not belong to it"
    if other := sorted(path for path, kind in expected.items() if present[path] != kind):
        return f"{other[0]} is not {expected[other[0]]} any more"
    for path, digest in manifest.files.items():
        with (folder / path).open("rb") as stream:
            if digest_of(stream) != digest:
                return f"the content of {path} has changed"
    return None


def _kinds(files: Iterable[str], links: Mapping[str, str], folders: Iterable[str]) -> dict[str, str]:
    linked = {path: f"a link to {target}" for path, target in links.items()}
    return {**dict.fromkeys(files, "a file"), **linked, **dict.fromkeys(folders, "an empty folder")}
