"""The files of a box outside its system: what an agent finds there, and what a solution makes of it.

Invariant: a listing is whole, or there is none.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from components.sandbox import Sandbox
from components.sandbox.archive import MOST_MEMBERS, Archive, Bounds
from components.sandbox.contract import SYSTEM_FOLDERS

LISTING_S = 60.0
SKIPPED = ("logs", "lost+found", ".dockerenv")
OURS = ("/solution", "/tests")
"""What is put there for the solution and the verifier is no trace of theirs."""
RECORDS = ("var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "root/.cache")
LIST = """cd / || exit 9
names=()
for name in * .[!.]*; do case " $1 " in *" $name "*) ;; *) [ -e "$name" ] && names+=("./$name");; esac; done
tar -cf - %s "${names[@]}" 2>/dev/null
[ $? -le 2 ]
"""
"""Busybox has the same tar. It ends with 1 or 2 where a file changed or may not be read."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One path of a box. `content` is a file's bytes or a link's target; None of a folder."""

    content: bytes | None
    program: bool = False


Traces = Mapping[str, Trace]
"""By absolute path."""


async def traces(box: Sandbox, most_bytes: int) -> Traces | None:
    """The files of `box` that its user can read; None where they are more, or more than `MOST_MEMBERS`, or there is no
    tar."""
    records = " ".join(f"--exclude={shlex.quote(f'./{name}')}" for name in RECORDS)
    skipped = " ".join((*SYSTEM_FOLDERS, *SKIPPED))
    asked = ["/bin/bash", "-c", LIST % records, "list", skipped]
    result = await box.exec(asked, timeout_s=LISTING_S, cwd="/", max_output_bytes=2 * most_bytes, merge_stderr=False)
    if result.truncated or result.exit_code != 0 or len(result.output) > most_bytes:
        return None
    return await asyncio.to_thread(_listed, result.output)


def _listed(content: bytes, most_members: int = MOST_MEMBERS) -> Traces | None:
    seen: dict[str, Trace | None] = {}
    try:
        with Archive(io.BytesIO(content), Bounds(most_members, len(content))) as archive:
            for member in archive:
                seen[_path(member.name)] = _trace(archive, member, seen)
    except (tarfile.TarError, OSError, ValueError, KeyError):  # a box may answer with any bytes
        return None
    return {path: trace for path, trace in seen.items() if trace is not None}


def _trace(archive: Archive, member: tarfile.TarInfo, seen: Mapping[str, Trace | None]) -> Trace | None:
    """Of a member; None of one that is neither a file, a folder nor a link.

    Raises:
        KeyError: a hard link to no earlier member. `tarfile` would look through all of them, and read the file again.
    """
    if member.issym():
        return Trace(member.linkname.encode("utf-8", "surrogateescape"))
    if member.isdir():
        return Trace(None)
    if member.islnk():
        return seen[_path(member.linkname)]
    file = archive.extractfile(member)
    return None if file is None else Trace(file.read(), bool(member.mode & 0o111))


def _path(name: str) -> str:
    return "/" + str(PurePosixPath(name))


def is_below(path: str, *folders: str) -> bool:
    """Whether it is one of these folders or in one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def made(before: Traces, after: Traces) -> list[str]:
    """Files and links that are new, and folders that are new and empty; sorted."""
    new = sorted(path for path in after.keys() - before.keys() if not is_below(path, *OURS))
    full = {str(PurePosixPath(path).parent) for path in after}
    return [path for path in new if after[path].content is not None or path not in full]


def changed(before: Traces, after: Traces) -> list[str]:
    """Files that have other bytes; sorted."""
    both = before.keys() & after.keys()
    return sorted(path for path in both if after[path].content not in (None, before[path].content))
