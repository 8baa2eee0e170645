"""An archive that a stranger made, an agent in its box above all, unpacked on this machine.

Invariant: nothing is written, and no link leads, outside of the folder it is unpacked in. Whoever filled it may
have put anything there, so what would is left out, and named; it ends nothing. Nor does a member that no folder can
have, below a file for example, nor more than `archive.Bounds` admits, nor damage.

Python's own filter follows links to see where a member leads, and before 3.11.13 (3.12.11) a path too long to follow
went through it: one archive could write any file of ours; Debian 12's Python has none. And where Python cannot make a
link, it puts the member that it leads to, which no filter has seen and nobody counts: a device, a link that leads out.
So nothing here depends on either: members are judged by their words, and laid one by one. None lies below a link, and
a link climbs first, at most to the folder, and then only descends (`leads_out`).
"""

from __future__ import annotations

import copy
import errno
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

from components.sandbox.archive import MOST_MEMBERS, Archive, Bounds
from components.sandbox.zygote.changes import printable

MOST_NAMED = 20
NAME_CHARS = 200
LONGEST_PATH, LONGEST_NAME, MOST_FOLDERS = 4095, 255, 100
"""Linux takes no longer ones. The folders on the way to a member, and to where its link leads, are looked at each."""
_OF_A_MEMBER = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG),
    errno.EMLINK,
}
"""What its own name, or what lies there by then, brings about. The rest is the machine's."""


def unpack(archive: bytes, target: Path, most_members: int = MOST_MEMBERS) -> list[str]:
    """Unpacks a tar archive, not compressed; what was left out: names and why, the first of them, and how many more.

    Raises:
        OSError: the disk is full, above all.
        tarfile.ReadError: it is no archive.
    """
    target.mkdir(parents=True, exist_ok=True)
    left_out: dict[str, str] = {}
    last = "."
    with Archive(io.BytesIO(archive), Bounds(most_members, len(archive))) as packed:
        try:
            for member in packed:
                if (reason := extract(packed, member, target, left_out)) is not None:
                    left_out[posixpath.normpath(member.name)] = reason
                last = member.name
        except tarfile.ReadError as error:
            left_out[f"all after {last}"] = str(error)
    named = [f"{printable(name)[:NAME_CHARS]} ({reason})" for name, reason in left_out.items()]
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return named[:MOST_NAMED] + more


def extract(packed: tarfile.TarFile, member: tarfile.TarInfo, target: Path, left_out: Mapping[str, str]) -> str | None:
    """Extracts a member, or says why not. `left_out` has what was not, by its normalized name.

    Raises:
        OSError: the disk is full, above all.
    """
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "neither a file, a folder nor a link"
    below = copy.copy(member)
    below.name = member.name.lstrip("/")  # as tar itself
    try:
        if any(_is_too_long(name, target) for name in (below.name, below.linkname)):
            return os.strerror(errno.ENAMETOOLONG)
        reason = leads_out(below, target) or _reason(below, target, left_out)
        if reason is None:
            _lay(packed, below, target)
    except (ValueError, OverflowError):
        return "a name or a time that no file can have"
    except OSError as error:
        if error.errno not in _OF_A_MEMBER:
            raise
        return os.strerror(error.errno)
    return reason


def _is_too_long(name: str, target: Path) -> bool:
    """Such a member cannot be made, and to look at every folder on its way takes long."""
    steps = os.fsencode(name).split(b"/")
    whole = len(os.fsencode(target)) + 1 + sum(map(len, steps)) + len(steps)
    return whole > LONGEST_PATH or len(steps) > MOST_FOLDERS or max(map(len, steps)) > LONGEST_NAME


def leads_out(member: tarfile.TarInfo, target: Path) -> str | None:
    """Why a member could lead out of `target`, told by its words and the links that lie there, following none.

    Links that pass keep within, by induction: each begins at a true folder (no link is on the way to it), climbs no
    higher than `target`, and descends, through other such links at most.
    """
    if (reason := _below(member.name, target)) is not None:
        return reason
    if member.issym():
        steps = [step for step in member.linkname.split("/") if step not in ("", ".")]
        climbs = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
        depth = len(posixpath.normpath(member.name).split("/")) - 1
        if member.linkname.startswith("/") or climbs > depth:
            return "a link that leads out"
        if ".." in steps[climbs:]:
            return "a link that climbs on its way"
    if member.islnk():
        return _below(member.linkname, target)
    return None


def _below(name: str, target: Path) -> str | None:
    """Why a name is none of a member whose folders are all true ones."""
    *folders, _ = posixpath.normpath(name).split("/")
    if name.startswith("/") or ".." in name.split("/"):
        return "a name that leads out"
    place = target
    for folder in folders:
        place /= folder
        try:
            if stat.S_ISLNK(os.lstat(place).st_mode):
                return "below a link"
        except FileNotFoundError:
            return None
    return None


def _reason(member: tarfile.TarInfo, target: Path, left_out: Mapping[str, str]) -> str | None:
    """Why a member that leads nowhere else is not even tried.

    A hard link to what was left out would have the content of what lies there instead. One to a link leads elsewhere
    from another folder, and so does a link through one that is made anew.
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


def _lay(packed: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Makes what a member is: a file that its owner may read and write, and that nobody else may write."""
    path = target / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isreg():
        packed.makefile(member, path)
        os.utime(path, (member.mtime, member.mtime))
        path.chmod(member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600)
    elif os.path.lexists(path):  # this very link (`_reason`)
        return
    elif member.issym():
        path.symlink_to(member.linkname)
    else:
        path.hardlink_to(target / member.linkname)
