"""Digest manifests: which files a stored folder has, and what is in them.

The digest of a folder is the digest of its manifest, so that one short name stands for every byte below it. A manifest
may be a stranger's: every path in one that was read lies below the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
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


Manifest = dict[str, FileDigest]
"""Path below the folder, in POSIX form, to the file's digest."""


def files_below(folder: Path) -> list[str]:
    """Relative POSIX paths of all files below `folder`, sorted. Empty folders leave no trace."""
    found = []
    for parent, _, names in os.walk(folder):
        found += [(Path(parent) / name).relative_to(folder).as_posix() for name in names]
    return sorted(found)


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
    """The canonical bytes of a manifest."""
    rows = {path: [item.size, item.sha256, item.executable] for path, item in sorted(manifest.items())}
    return json.dumps(rows, separators=(",", ":")).encode()


def parse(data: bytes) -> Manifest:
    """The inverse of `dump`.

    Raises:
        DamagedError: a file in it would lie outside of its folder, or could not exist.
        StoreError: these are not the bytes of a manifest of this version.
    """
    try:
        manifest = {path: _digest(*row) for path, row in json.loads(data).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError("the manifest of a stored folder was written by another version, or is damaged") from error
    if (strange := next((path for path in manifest if not _is_below(path)), None)) is not None:
        raise DamagedError(f"the manifest of a stored folder names {strange[:200]!a}, which is no file below it")
    return manifest


def _digest(size: Any, sha256: Any, executable: Any) -> FileDigest:
    if type(size) is not int or size < 0 or not _SHA256.fullmatch(sha256) or type(executable) is not bool:
        raise ValueError("no digest of a file")
    return FileDigest(size, sha256, executable)


def _is_below(path: str) -> bool:
    """Whether a path is in the form of `files_below`, which leads nowhere else."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def difference(manifest: Manifest, folder: Path) -> str | None:
    """What differs between `folder` and its manifest, in words; None when nothing does."""
    present = set(files_below(folder))
    if missing := sorted(manifest.keys() - present):
        return f"{missing[0]} is missing"
    if foreign := sorted(present - manifest.keys()):
        return f"{foreign[0]} does not belong to it"
    for path, expected in manifest.items():
        with (folder / path).open("rb") as stream:
            if digest_of(stream) != expected:
                return f"the content of {path} has changed"
    return None
