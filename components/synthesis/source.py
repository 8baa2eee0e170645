"""A task as the operators see it: its steps, what its solution leaves behind, the names that it uses.

Invariant: an artifact is a text file that the solution makes, with the lines that it has in the end. Of a task of our
own dialect the verifier says so; of any other it was seen by running the solution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from components.errors import TaskError
from components.pool import read_outline
from components.pool.outline import Outline
from components.records import TaskRef
from components.synthesis.extension import Extension, read_extension
from components.synthesis.measure import turns, words
from components.synthesis.probe import Seen
from components.synthesis.steps import Lines

TOKEN = re.compile(r"[A-Za-z0-9_.-]+")
"""A name or a word, wherever it stands."""
_PATHS = {"links_to": 2, "commit_says": 0}
"""How many arguments of a check are paths; of any other the first."""


@dataclass(frozen=True, slots=True)
class Source:
    """One accepted task.

    Attributes:
        ref: with the assertion lists that were measured.
        path: its directory.
        outline: its steps; of a task in another dialect those that were added to it.
        extends: what the steps are added to, in another dialect; None where every step is ours.
        artifacts: the files that its solution leaves, by their path in the working directory.
        taken: names and words that are in use.
        turns: of its reference solution.
        words: of its instruction.
    """

    ref: TaskRef
    path: Path
    outline: Outline
    extends: Extension | None
    artifacts: Mapping[str, Lines]
    taken: frozenset[str]
    turns: int
    words: int

    @property
    def assertions(self) -> int:
        """Assertions that fail untouched and pass solved: those that earn a reward."""
        return len(self.ref.fail_to_pass)

    @property
    def own(self) -> Mapping[str, Lines]:
        """Artifacts of our own steps: what is asserted of them can be changed along with them."""
        return own_artifacts(self.outline, self.ref.fail_to_pass)


def read_source(path: Path, ref: TaskRef, seen: Seen | None = None) -> Source:
    """Reads an accepted task.

    Args:
        seen: what its own solution was seen to leave; None to read only what is ours.

    Raises:
        TaskError: it is not of our own dialect, and `seen` is None.
    """
    extends = None
    try:
        outline = read_outline(path, ref.pass_to_pass)
    except TaskError:
        if seen is None:
            raise
        extends, outline = read_extension(path, ref.pass_to_pass)
    instruction = (path / "instruction.md").read_text(encoding="utf-8")
    solution = (path / "solution" / "solve.sh").read_text(encoding="utf-8", errors="replace")
    length = len(outline.steps) + (0 if extends is None else turns(extends.solution))
    own = own_artifacts(outline, ref.fail_to_pass)
    files, names = ({}, frozenset[str]()) if seen is None else (seen.files, seen.names)
    texts = [instruction, solution, *names, *outline.files, *outline.files.values()]
    texts += [argument for _, call in outline.checks for argument in call]
    taken = frozenset(token for text in texts for token in TOKEN.findall(text))
    return Source(ref, path, outline, extends, {**files, **own}, taken, length, words(instruction))


def own_artifacts(outline: Outline, fail_to_pass: tuple[str, ...]) -> dict[str, Lines]:
    """Plain files whose content an assertion knows, and that were not there or not so before."""
    linked = {path for _, call in outline.checks if call[0] == "links_to" for path in call[1:]}
    return {
        call[1]: call[2:]
        for name, call in outline.checks
        if call[0] == "equals" and name in fail_to_pass and call[1] not in linked and "/" not in call[1]
    }


def paths_of(outline: Outline) -> frozenset[str]:
    """The top-level names in the working directory that steps and files have to do with."""
    found = set(outline.files)
    for _, call in outline.checks:
        found |= {".git"} if call[0] == "commit_says" else set(call[1 : 1 + _PATHS.get(call[0], 1)])
    return frozenset(path.split("/")[0] for path in found)
