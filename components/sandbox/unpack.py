"""An archive that a box made, unpacked on this machine.

Invariant: nothing is written, and no link leads, outside of the folder it is unpacked in. Whoever filled the box may
have put anything there, so what would is left out, and named; it ends nothing. Nor does a member that no folder can
have, below a file for example.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import tarfile
from pathlib import Path

from components.sandbox.zygote.changes import printable

MOST_NAMED = 20
NAME_CHARS = 200
_OF_A_MEMBER = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG}
"""What its own name, or what lies there by then, brings about. The rest is the machine's."""


def unpack(archive: bytes, target: Path) -> list[str]:
    """Unpacks a tar archive; what was left out: names and why, the first of them, and how many more.

    Raises:
        OSError: the disk is full, above all.
        tarfile.ReadError: it is no archive.
    """
    target.mkdir(parents=True, exist_ok=True)
    left_out: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for member in packed:
            if (reason := _extract(packed, member, target, left_out)) is not None:
                left_out[posixpath.normpath(member.name)] = reason
    named = [f"{printable(name)[:NAME_CHARS]} ({reason})" for name, reason in left_out.items()]
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return named[:MOST_NAMED] + more


def _extract(packed: tarfile.TarFile, member: tarfile.TarInfo, target: Path, left_out: dict[str, str]) -> str | None:
    """Extracts a member, or says why not."""
    try:
        safe = tarfile.data_filter(member, str(target))
        reason = _reason(safe, target, left_out)
        if reason is None and not (safe.islnk() and (target / safe.name).exists()):  # this very link
            packed.extract(safe, target, filter="data")
    except tarfile.FilterError as error:
        return type(error).__name__
    except (ValueError, OverflowError):
        return "a name or a time that no file can have"
    except OSError as error:
        if error.errno not in _OF_A_MEMBER:
            raise
        return os.strerror(error.errno)
    return reason


def _reason(member: tarfile.TarInfo, target: Path, left_out: dict[str, str]) -> str | None:
    """Why a member that leads nowhere else is not even tried.

    In place of a link that it cannot make, Python puts the member it leads to, unfiltered, or says nothing. A hard link
    to a link leads elsewhere from another folder, and so does a link through one that is made anew.
    """
    path = target / member.name
    if member.islnk():
        if posixpath.normpath(member.linkname) in left_out:
            return "a link to what was left out"
        linked = target / member.linkname
        if linked.is_symlink() or not linked.is_file():
            return "a hard link to no file"
        same = path.exists() and path.samefile(linked)
    elif member.issym():
        same = path.is_symlink() and os.readlink(path) == member.linkname
    else:
        same = not member.isdir() or path.is_dir()
    return None if same or not os.path.lexists(path) else "something else is there"
