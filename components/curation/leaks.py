"""Finds the tests and the solution of a task where its agent could read them.

They are known by their bytes and by their telling lines, so that neither another name, nor an archive, nor a comment
more or less hides them. Invariants: what is unpacked is bounded, whatever the archive claims; a data file that tests
and environment share may be the pristine copy that a guard compares with, and is only flagged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from components.curation.result import UNPROBED, Flag, Refused, Rejection, listed, quoted
from components.curation.unpack import LARGEST_FILE, Allowance, unpacked
from components.pool import Task

LARGEST_TEXT = 1 << 20
"""Bytes of a text that is compared line by line. What is larger is data."""
SHORTEST_LINE, SHORTEST_MATCH = 16, 48
"""Characters of a telling line, and of all that are found: less is anybody's."""
SHARE = 0.5
"""Of a file's telling lines, by characters, from which on it is that file."""
MOST_LINES = 400
SMALLEST_DATA = 16
"""Bytes of a data file that is told from others."""

_TESTS = re.compile(r"(?:^|/)(?:test_[^/]*\.\w+|[^/]*_test\.\w+|[^/]*\.(?:bats|test\.[jt]s|spec\.[jt]s)|conftest\.py)$")
_PROGRAM = re.compile(r"\.(?:sh|bash|py|pl|rb|js|ts|go|rs|c|cc|cpp|java|patch|diff|sed|awk|sql)$")
_ANYBODYS = re.compile(
    r"^(?:#|//|import |from \S+ import |set -|cd |export |source |pip3? |python3? -m pip|apt(?:-get)? |sudo apt|curl "
    r"|wget |git (?:config|init|add)|mkdir |echo [01]\b|if \[ |\[\[? |fi\b|done\b|else\b|exit |return\b"
    r"|assert True|pass\b)"
)


@dataclass(frozen=True, slots=True)
class Secret:
    """One file that the agent must not see.

    Attributes:
        name: its place in the task.
        digest: of its bytes.
        lines: what tells it from other files; nothing of a data file.
    """

    name: str
    digest: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Secrets:
    """The tests and the solution of a task."""

    code: tuple[Secret, ...]
    data: tuple[Secret, ...]

    @classmethod
    def of(cls, task: Task) -> Secrets:
        """Of a loaded task."""
        told = task.instruction
        code, data = [], []
        for name, content in _files(task.path, ("tests", "solution")):
            secret = Secret(name, digest_of(content), _telling(content, told))
            if _is_code(name, task.path) and secret.lines:
                code.append(secret)
            elif len(content) >= SMALLEST_DATA:
                data.append(Secret(name, secret.digest, ()))
        return cls(tuple(code), tuple(data))

    def refuse(self, files: Iterable[tuple[str, bytes]]) -> list[Flag]:
        """What of the secrets stands in these files; data files are flagged, and what could not be looked into.

        Raises:
            Refused: the tests or the solution do.
        """
        data = {secret.digest: secret for secret in self.data}
        flags: list[Flag] = []
        sealed: list[str] = []
        for place, content in files:
            allowance = Allowance()
            for where, inner in unpacked(place, content, allowance):
                if found := self._recognised(inner):
                    raise Refused(Rejection.LEAK, f"{where} {found}")
                if (secret := data.get(digest_of(inner))) is not None:
                    flags.append(Flag(Rejection.LEAK, f"{where} has the bytes of {secret.name}"))
            sealed += allowance.sealed
        if sealed:
            said = f"{listed(sealed)}: damaged, encrypted or packed in another way, and not looked into"
            flags.append(Flag(UNPROBED, said))
        return flags

    def _recognised(self, content: bytes) -> str | None:
        digest = digest_of(content)
        text = None if len(content) > LARGEST_TEXT or b"\0" in content else _spaced(content.decode("utf-8", "replace"))
        for secret in self.code:
            if digest == secret.digest:
                return f"has the bytes of {secret.name}"
            if text is None:
                continue
            found = [line for line in secret.lines if line in text]
            length, whole = sum(map(len, found)), sum(map(len, secret.lines))
            if length >= max(SHORTEST_MATCH, SHARE * whole):
                of = f"{len(found)} of the {len(secret.lines)} telling lines of {secret.name}"
                return f"has {of}, such as {quoted(max(found, key=len))!r}"
        return None


def search_environment(task: Task, secrets: Secrets) -> None:
    """Looks through the folder that the image is made of. Of its data files the box's own tell.

    Raises:
        Refused: the tests or the solution are in it.
    """
    secrets.refuse(_files(task.path, ("environment",)))


def _is_code(name: str, task: Path) -> bool:
    """Tests and programs. A `test.sh` that has tests beside it only starts them."""
    if name == "tests/test.sh":
        return not any(_TESTS.search(path.name) for path in (task / "tests").rglob("*"))
    return bool((_TESTS if name.startswith("tests/") else _PROGRAM).search(name))


def _files(task: Path, folders: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for folder in folders:
        for path in sorted((task / folder).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_FILE:
                yield str(path.relative_to(task)), path.read_bytes()


def digest_of(content: bytes) -> str:
    """Names a file's bytes."""
    return hashlib.sha256(content).hexdigest()


def _spaced(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def _telling(content: bytes, told: str) -> tuple[str, ...]:
    """The lines by which a text is known: long enough, nobody else's, and not what the instruction says anyway."""
    if b"\0" in content or len(content) > LARGEST_TEXT:
        return ()
    public = _spaced(told)
    lines = dict.fromkeys(_spaced(content.decode("utf-8", "replace")).splitlines())
    return tuple(
        line for line in lines if len(line) >= SHORTEST_LINE and not _ANYBODYS.match(line) and line not in public
    )[:MOST_LINES]
