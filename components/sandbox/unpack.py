"""An archive that a box made, unpacked on this machine.

Invariant: nothing is written, and no link leads, outside of the folder it is unpacked in. Whoever filled the box may
have put anything there, so what would is left out, and named; it ends nothing.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from pathlib import Path

from components.sandbox.zygote.changes import printable

MOST_NAMED = 20
NAME_CHARS = 200


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
            reason = _reason(member, left_out)
            if reason is None:
                try:
                    packed.extract(member, target, filter="data")
                    continue
                except tarfile.FilterError as error:
                    reason = type(error).__name__
            left_out[posixpath.normpath(member.name)] = reason
    named = [f"{printable(name)[:NAME_CHARS]} ({reason})" for name, reason in left_out.items()]
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return named[:MOST_NAMED] + more


def _reason(member: tarfile.TarInfo, left_out: dict[str, str]) -> str | None:
    """Why a member is not even tried. Python would put the content of a hard link's target in its place, unfiltered."""
    if member.isdev():
        return "a device or fifo"
    if member.islnk() and posixpath.normpath(member.linkname) in left_out:
        return "a link to what was left out"
    return None
