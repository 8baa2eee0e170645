"""What was changed in a box in places that a view of it shows pristine.

Invariant: the whole of it is the content of the upper folders of /usr and /etc, and what stands in folders and under
names that a new box does not have. Programs of the box can bring about any tree there, so the walk neither follows
links nor recurses, and what it tells is bounded.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

MOST_TOLD = 64
MOST_WALKED = 20_000
TOLD_CHARS = 200

PRISTINE = ("boot", "logs", "run", "solution", "tests")
"""Folders that a view shows empty whatever the agent put there; with /usr, /etc, /proc, /sys, /dev and the links of a
merged /usr they are what a verifier may rely on."""
HIDDEN = (
    ".coveragerc", ".pytest.ini", ".pytest.toml", "conftest.py", "package.json", "node_modules", "pyproject.toml",
    "pytest.ini", "pytest.toml", "setup.cfg", "setup.py", "sitecustomize.py", "tox.ini", "usercustomize.py",
)  # fmt: skip
"""Names in / that no view shows: test runners look for their configuration upwards from /tests."""
RECORDS = ("var/lib/dpkg", "var/lib/apt", "var/cache/apt")
"""Below other folders, what an image's package manager knows of /usr and /etc: pristine as these are."""
HOME = "root"
AT_HOME = (
    ".cargo/bin/uv", ".cargo/bin/uvx", ".cargo/config", ".cargo/config.toml", ".cargo/env", ".config/go/env",
    ".config/pip", ".config/uv", ".curlrc", ".local/bin/env", ".local/bin/uv", ".local/bin/uvx", ".m2/settings.xml",
    ".npmrc", ".pip", ".pydistutils.cfg", ".wgetrc",
)  # fmt: skip
"""What the set-up of public verifiers, and the tools that they run, load or run out of the home folder, which is
otherwise the agent's to fill. Git's settings are not among them: agents set their names there, and whoever runs git in
the agent's repository obeys that anyway."""
COMMANDS = (".cargo/bin", ".local/bin")
"""Folders at home that the same set-up (uv's `env`, Rust's) puts before all others on PATH: what an agent left there
would be run in the place of the system's, and is what uv takes for its Python."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
CACHED = re.compile(r"/__pycache__/(?:[^/]+\.pyc(?:\.\d+)?)?$")
"""What a Python of root's leaves of every module it loads. It is reverted like the rest, but says nothing of intent."""

COARSE = 5
"""CLOCK_REALTIME_COARSE: the clock that files' times are taken from, in `time.clock_gettime_ns`."""
LATEST = 1 << 63


class Entry(NamedTuple):
    """What stands somewhere below a folder. No program can set `changed`, when that was last changed, in ns."""

    path: str
    mode: int
    device: int
    changed: int


MOST_SEEN = 2 * MOST_WALKED
"""Of what a box changed, so much is looked at in each of its folders. A program of the box can bring about millions of
entries, at the end of long paths, of which none is told, and whoever waits for the box waits for that."""


def told(lines: Iterator[str], before: frozenset[str] = frozenset()) -> list[str]:
    """The first of them, without those that stood there before, and how many more there are."""
    rest = [line for line in islice(lines, MOST_WALKED) if line not in before]
    more = [f"and {len(rest) - MOST_TOLD} more"] if len(rest) > MOST_TOLD else []
    return [line[:TOLD_CHARS] for line in rest[:MOST_TOLD]] + more


def changed(prefix: str, uppers: Mapping[str, int], links: Sequence[tuple[str, str]]) -> Iterator[str]:
    """One line a path.

    Args:
        prefix: the folder that stands for the root; empty in a box with its own.
        uppers: descriptors of the upper folders, by the name of what they lie over.
        links: links of the root that a new box has, with their targets.
    """
    for name, target in links:
        if not os.path.islink(f"{prefix}/{name}") or os.readlink(f"{prefix}/{name}") != target:
            yield f"replaced /{name}"
    for name in HIDDEN:
        if os.path.lexists(f"{prefix}/{name}"):
            yield f"planted /{name}"
    for name in PRISTINE:
        yield from _planted(f"{prefix}/{name}", f"/{name}")
    for name, upper in uppers.items():
        for entry in _walk(upper, MOST_SEEN):
            if not CACHED.search(entry.path):
                yield _change(name, entry)


def since(moment: int, prefix: str, uppers: Mapping[str, int], folders: Sequence[str]) -> Iterator[str]:
    """One line for each file that was changed since then: below uppers, or below folders of the root as they stand.

    Bytecode is told too: whoever cannot change a module may change what Python has cached of it.
    """
    for name, upper in uppers.items():
        for entry in _walk(upper):
            if entry.changed >= moment and not stat.S_ISDIR(entry.mode):
                yield _change(name, entry)
    for name in folders:
        try:
            root = os.open(f"{prefix}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # it is not there, or a link to one that is
            continue
        try:
            for entry in _walk(root):
                if entry.changed >= moment and not stat.S_ISDIR(entry.mode):
                    yield _change(name, entry)
        finally:
            os.close(root)


def _change(name: str, entry: Entry) -> str:
    removed = stat.S_ISCHR(entry.mode) and entry.device == 0
    return printable(f"{'removed' if removed else 'changed'} /{name}/{entry.path}")


def at_home(prefix: str) -> list[str]:
    """Paths in the home folder that a verifier's set-up would load."""
    home = f"{prefix}/{HOME}"
    found = dict.fromkeys(f"/{HOME}/{name}" for name in AT_HOME if os.path.lexists(f"{home}/{name}"))
    for folder in COMMANDS:
        with contextlib.suppress(OSError):  # it is not there, or no folder
            found |= dict.fromkeys(f"/{HOME}/{folder}/{name}" for name in os.listdir(f"{home}/{folder}"))
    return list(found)


def is_loaded(path: str) -> bool:
    """Whether a path is one that `at_home` would tell."""
    home, _, name = path.removeprefix("/").partition("/")
    return home == HOME and (name in AT_HOME or name.rpartition("/")[0] in COMMANDS)


def doubtful(paths: Iterable[str]) -> list[str]:
    """Such paths, bounded and printable: a folder that has too many of them, or an odd one, is told in their place."""
    found = sorted({*paths})
    for folder in (f"/{HOME}/{name}" for name in COMMANDS):
        names = [path.removeprefix(f"{folder}/") for path in found if path.rpartition("/")[0] == folder]
        if len(names) > MOST_TOLD or not all(map(PLAIN_NAME.fullmatch, names)):
            found = [folder, *(path for path in found if path.rpartition("/")[0] != folder)]
    return found


def is_in(upper: int | None, path: str) -> bool:
    """Whether a path is of the box's own making: `upper` holds what was changed below the root."""
    try:
        os.stat(path.lstrip("/"), dir_fd=upper, follow_symlinks=False)
    except OSError:
        return False
    return upper is not None


def is_asked_for(path: str, instruction: str) -> bool:
    """Whether a doubtful path is what a task wants: its instruction names it by its place in the home folder, or a
    command by its name and by its folder. That the folder is named alone lets nobody put a Python there."""
    place = path.split("/", 2)[2]
    folder, _, name = place.rpartition("/")
    if place in COMMANDS:
        return False
    if place in instruction or folder not in COMMANDS or place in AT_HOME:
        return place in instruction
    return folder in instruction and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instruction) is not None


def _planted(place: str, name: str) -> Iterator[str]:
    try:
        root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:  # a link or a file
        yield f"planted {name}"
        return
    try:
        for entry in _walk(root, MOST_SEEN):
            yield printable(f"planted {name}/{entry.path}")
    finally:
        os.close(root)


def _walk(root: int, most: int | None = None) -> Iterator[Entry]:
    """Everything below a folder but the folders that hold something. Of what is more than `most` the last is told."""
    waiting = [""]
    seen = 0
    while waiting:
        inner = waiting.pop()
        try:
            folder = os.open(inner or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        except OSError:  # too deep for a path
            yield Entry(inner, 0, 0, LATEST)
            continue
        try:
            with os.scandir(folder) as found:
                entries = list(found if most is None else islice(found, most + 1 - seen))
            seen += len(entries)
            if most is not None and seen > most:
                yield Entry(f"{inner}/, and what else is there", 0, 0, LATEST)
                return
            if inner and not entries:
                yield Entry(f"{inner}/", stat.S_IFDIR, 0, LATEST)
            for entry in entries:
                path = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                else:
                    info = entry.stat(follow_symlinks=False)
                    yield Entry(path, info.st_mode, info.st_rdev, info.st_ctime_ns)
        finally:
            os.close(folder)


def printable(name: str) -> str:
    """A name that an agent chose, as text that can be stored and shown."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8", "backslashreplace").translate(_CONTROLS)


_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), 127]}
