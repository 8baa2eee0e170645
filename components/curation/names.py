"""What an agent is told, and what the tests want that nobody told it.

Invariant: in doubt a name is told: one that shares a word, or the beginning of one, with the instruction or with
anything in the environment could have been derived. Of what a box holds only words and names are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from components.curation.result import UNPROBED, Flag, Rejection, listed
from components.curation.traces import Traces
from components.curation.unpack import LARGEST_FILE, Allowance, unpacked
from components.pool import Task

READ_BYTES = 1 << 20
"""Of a file, in search of words."""
BEGINNING = 4
"""Characters that two words must share: `results` tells of `result`."""
SHORTEST = 3
"""Characters of a piece of a name that says something."""
_PIECE = re.compile(r"[a-z0-9]+")
_IDENTIFIER = re.compile(r"(?<![\w/.-])[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?![\w/-])")
_SCAFFOLD = re.compile(r"^(?:test_|pytest_|tmp_path$|capture_output$|sys_|LC_)|_test$")


@dataclass(frozen=True, slots=True)
class Told:
    """The words that reach an agent.

    Attributes:
        instruction: in lower case.
        workdir: where relative paths begin.
        beginnings: of all words of the instruction and the environment, and of the names in it.
        names: of files in the environment, in lower case.
        tests, solution: all that they say, in lower case.
        whole: whether everything was looked at: what was left packed could tell of any name.
    """

    instruction: str
    workdir: str
    beginnings: frozenset[str]
    names: frozenset[str]
    tests: str
    solution: str
    whole: bool = True

    @classmethod
    def of(cls, task: Task, workdir: str) -> Told:
        """By the instruction and the environment folder."""
        environment = [path for path in sorted(task.environment_dir.rglob("*")) if _is_plain(path)]
        texts = [task.instruction, *(path.name for path in environment), *map(_text, environment)]
        return cls(
            instruction=task.instruction.lower(),
            workdir=workdir,
            beginnings=frozenset(_beginnings(texts)),
            names=frozenset(path.name.lower() for path in environment),
            tests=_texts(task.tests_dir).lower(),
            solution="" if task.solution_dir is None else _texts(task.solution_dir).lower(),
        )

    def seen(self, before: Traces, most: int = LARGEST_FILE) -> Told:
        """And by the files of a box, and what is in its archives: `most` bytes of them all are unpacked."""
        allowance = Allowance(most)
        beginnings, names = set(self.beginnings), set(self.names)
        for path, trace in before.items():
            for place, content in unpacked(path, trace.content or b"", allowance):
                names.add(PurePosixPath(place).name.lower())
                beginnings.update(_beginnings([place, content[:READ_BYTES].decode("utf-8", "replace")]))
        whole = self.whole and not allowance.short and not allowance.sealed
        return replace(self, beginnings=frozenset(beginnings), names=frozenset(names), whole=whole)

    def doubts(self) -> list[Flag]:
        """Why no name is hidden, where not everything was looked at."""
        said = "the archives of a box hold too much, or cannot be opened: which names are hidden is not known"
        return [] if self.whole else [Flag(UNPROBED, said)]

    def asks_for(self, path: str) -> bool:
        """Whether the instruction names it. A name without a folder or an ending may be any word."""
        return any(_says(self.instruction, form) for form in self._forms(path) if "/" in form or "." in form)

    def is_hidden(self, path: str) -> bool:
        """Whether tests and solution name it, and nothing that the agent sees tells of it or of the folder it is in.

        What the solution makes without naming it comes out of the environment by some way.
        """
        forms = self._forms(path)
        if not self.whole or not all(any(_says(text, form) for form in forms) for text in (self.tests, self.solution)):
            return False
        pieces = [piece for part in self._below(path).split("/") for piece in _PIECE.findall(_stem(part))]
        telling = [piece for piece in pieces if len(piece) >= SHORTEST]
        if not telling or PurePosixPath(path).name.lower() in self.names:
            return False
        return not any(piece[:BEGINNING] in self.beginnings for piece in telling)

    def _below(self, path: str) -> str:
        return path.lower().removeprefix(self.workdir.lower().rstrip("/") + "/").lstrip("/")

    def _forms(self, path: str) -> list[str]:
        return [path.lower(), self._below(path), PurePosixPath(path).name.lower()]


def unmentioned(task: Task) -> list[Flag]:
    """Names of functions, fields and settings that solution and tests share, and that no agent is told."""
    if task.solution_dir is None:
        return []
    known = f"{task.instruction}\n{_texts(task.environment_dir)}"
    solution, tests = (set(_IDENTIFIER.findall(_texts(folder))) for folder in (task.solution_dir, task.tests_dir))
    names = sorted(name for name in solution & tests if name not in known and not _SCAFFOLD.search(name))
    shared = f"tests and solution share names that nobody tells the agent: {listed(names)}"
    return [Flag(Rejection.HIDDEN_REQUIREMENT, shared)] if names else []


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _texts(folder: Path) -> str:
    return "\n".join(_text(path) for path in sorted(folder.rglob("*")) if _is_plain(path))


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(READ_BYTES).decode("utf-8", "replace")


def _stem(name: str) -> str:
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem else name


def _beginnings(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (piece[0][:BEGINNING] for piece in _PIECE.finditer(text.lower()))


def _says(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None
