"""Which tasks of a pool repeat a benchmark's: what is trained on must not be what is evaluated on.

A task is contaminated when, in its instruction, its solution or its tests, 13 words in a row stand in the same part of
a benchmark's task (windows of stride 1), or when the 5-grams of such a part have a Jaccard index of `jaccard` or more
with it: the first finds copies, the second what was reworded. Both are the measures of published pools (T1's sources
use 13-token windows and 5-grams).

A text that carries a canary, the mark with which benchmarks ask not to be trained on, is contaminated whatever else it
says.

What three or more tasks of one benchmark have in common is the benchmark's own boilerplate (how its `test.sh` installs
pytest) and is compared with nobody. Every finding quotes what it was found by, so that a person can check it.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.curation.shingles import windows, words_of
from components.errors import TaskError

Part = Literal["instruction", "solution", "tests"]
Measure = Literal["windows", "jaccard", "copy", "canary"]
Found = tuple[Measure, float, tuple[str, ...]]
"""How it was found, how much of it, and the words."""
PARTS: tuple[Part, ...] = ("instruction", "solution", "tests")
WINDOW = 13
GRAM = 5
JACCARD = 0.1
"""Of 5-grams, from which on a part is reworded rather than its own: sound pools stay below 0.01 with a benchmark."""
FEWEST_GRAMS = 20
"""Below that a Jaccard index says nothing: `mkdir out && touch out/done` is nobody's."""
BOILERPLATE = 3
"""Tasks of one benchmark that share a window before it is nobody's."""
CANARY = re.compile(r"canary\W+guid\W+([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
LARGEST_FILE = 1 << 20
"""Bytes of a file that are read. What is larger is data."""


@dataclass(frozen=True, slots=True)
class Contamination:
    """One reason why a task may not be trained on.

    Attributes:
        benchmark, benchmark_task: what it repeats: the benchmark's folder by name, and its task; of a canary, `canary`
            and its GUID.
        measure: `windows`: `value` is the share of the part's windows that stand in the benchmark's task.
            `jaccard`: `value` is the index of the 5-grams. `copy`: a part shorter than a window is the same to the
            last word, and `value` is 1. `canary`: `value` is 1.
        quote: the words of the first window found, or of the first common 5-gram.
    """

    task_id: str
    benchmark: str
    benchmark_task: str
    part: Part
    measure: Measure
    value: float
    quote: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = f"{self.part} of {self.benchmark}/{self.benchmark_task}"
        return f"{self.measure} {self.value:.3f} with the {where}: {self.quote!r}"


@dataclass(frozen=True, slots=True)
class _Text:
    """One part of one task. A window lies within one file."""

    files: tuple[tuple[str, ...], ...]
    canaries: tuple[str, ...] = ()

    def hashes(self, size: int) -> NDArray[np.uint64]:
        """All windows of the part, each once, sorted."""
        found = [windows(words, size) for words in self.files]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)

    def quote(self, wanted: NDArray[np.uint64], size: int) -> tuple[str, ...]:
        """The first window whose hash is among `wanted`; nothing when there is none."""
        for words in self.files:
            at = np.flatnonzero(np.isin(windows(words, size), wanted))
            if at.size:
                return words[at[0] : at[0] + size]
        return ()

    def has(self, words: tuple[str, ...]) -> bool:
        """Whether these words stand in a row in one of its files."""
        size = len(words)
        return any(words == file[at : at + size] for file in self.files for at in range(len(file) - size + 1))

    @property
    def is_short(self) -> bool:
        """Whether it has words, and no window."""
        return 0 < max(map(len, self.files), default=0) < WINDOW


def read_parts(folder: Path) -> Mapping[Part, _Text]:
    """The texts of a Harbor task directory, whether or not it is a sound task.

    Links out of the task are not followed. What holds a zero byte is no text; what is not UTF-8 is read all the same.

    Raises:
        TaskError: a file cannot be read.
    """
    sources = {"instruction": [folder / "instruction.md"]}
    sources |= {part: sorted(_files(folder / part)) for part in ("solution", "tests")}
    texts: dict[Part, _Text] = {}
    for part in PARTS:
        read = [_read(path, folder) for path in sources[part] if _is_own(path, folder)]
        canaries = sorted({guid.lower() for text in read for guid in CANARY.findall(text)})
        texts[part] = _Text(tuple(words for words in map(words_of, read) if words), tuple(canaries))
    return texts


def _is_own(path: Path, folder: Path) -> bool:
    """Whether it is a file of the task, by whatever way."""
    try:
        return path.is_file() and path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link to nowhere, or to itself
        return False


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names)


def _read(path: Path, folder: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE)
    except OSError as error:
        raise TaskError(str(folder), [f"{path.relative_to(folder)}: cannot be read: {error.strerror}"]) from error
    return "" if b"\0" in content else content.decode("utf-8", "replace")


class _Index:
    """Which of several texts have a window, without those that `BOILERPLATE` of them share.

    Attributes:
        sizes: (texts,) int64, how many windows each text has of its own.
    """

    def __init__(self, texts: Sequence[_Text], size: int) -> None:
        sets = [text.hashes(size) for text in texts]
        every, shared = np.unique(np.concatenate(sets), return_counts=True)
        common = every[shared >= BOILERPLATE]
        own = [np.setdiff1d(hashes, common, assume_unique=True) for hashes in sets]
        self.sizes = np.array([hashes.size for hashes in own], np.int64)
        hashes, owners = np.concatenate(own), np.repeat(np.arange(len(own)), self.sizes)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._owners = hashes[order], owners[order]

    def find(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """How many of `hashes`, each given once, every text has, (texts,) int64; and which of them any text has."""
        first = np.searchsorted(self._hashes, hashes, "left")
        last = np.searchsorted(self._hashes, hashes, "right")
        met = np.concatenate(
            [self._owners[a:b] for a, b in zip(first, last, strict=True) if a < b] or [self._owners[:0]]
        )
        return np.bincount(met, minlength=self.sizes.size), hashes[first < last]


class Benchmark:
    """The texts of a benchmark's tasks, less its boilerplate.

    Args:
        folder: one task directory a subfolder, `instruction.md` in each.

    Raises:
        TaskError: there is no such folder, there is no task in it, or a file of it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        found = sorted(path.parent for path in folder.glob("*/instruction.md"))
        if not found:
            raise TaskError(str(folder), ["has no task: no */instruction.md"])
        self._tasks = [task.name for task in found]
        read = [read_parts(task) for task in found]
        self._texts = {part: [texts[part] for texts in read] for part in PARTS}
        self._windows = {part: _Index(self._texts[part], WINDOW) for part in PARTS}
        self._grams = {part: _Index(self._texts[part], GRAM) for part in PARTS}

    def compare(self, task_id: str, parts: Mapping[Part, _Text], threshold: float) -> Iterator[Contamination]:
        """What `parts` repeat, at most one finding a part and task of the benchmark."""
        for part, text in parts.items():
            found = self._reworded(part, text, threshold) | self._copied(part, text) | self._same(part, text)
            for owner, (measure, value, quote) in sorted(found.items()):
                yield Contamination(task_id, self.name, self._tasks[owner], part, measure, value, " ".join(quote))

    def _copied(self, part: Part, text: _Text) -> dict[int, Found]:
        hashes = text.hashes(WINDOW)
        counts, met = self._windows[part].find(hashes)
        found: dict[int, Found] = {}
        for owner in np.flatnonzero(counts).tolist():
            theirs = self._texts[part][owner]
            quote = text.quote(np.intersect1d(met, theirs.hashes(WINDOW), assume_unique=True), WINDOW)
            if theirs.has(quote):  # The words, not only their hash.
                found[owner] = "windows", float(counts[owner] / hashes.size), quote
        return found

    def _reworded(self, part: Part, text: _Text, threshold: float) -> dict[int, Found]:
        hashes, index = text.hashes(GRAM), self._grams[part]
        if hashes.size < FEWEST_GRAMS:
            return {}
        counts, met = index.find(hashes)
        jaccard = counts / (hashes.size + index.sizes - counts)
        telling = (jaccard >= threshold) & (index.sizes >= FEWEST_GRAMS)
        return {
            owner: ("jaccard", float(jaccard[owner]), text.quote(met, GRAM))
            for owner in np.flatnonzero(telling).tolist()
        }

    def _same(self, part: Part, text: _Text) -> dict[int, Found]:
        if not text.is_short:
            return {}
        quote = tuple(word for words in text.files for word in words)
        return {
            owner: ("copy", 1.0, quote) for owner, theirs in enumerate(self._texts[part]) if theirs.files == text.files
        }


def _canaries(task_id: str, parts: Mapping[Part, _Text]) -> Iterator[Contamination]:
    for part, text in parts.items():
        for guid in text.canaries:
            yield Contamination(task_id, "canary", guid, part, "canary", 1.0, f"canary GUID {guid}")


def contaminations(
    tasks: Iterable[Path], benchmarks: Iterable[Benchmark], threshold: float
) -> dict[str, list[Contamination]]:
    """What the task directories repeat of the benchmarks, by task id; a clean task is not in it.

    Args:
        threshold: Jaccard index of 5-grams from which a part counts as reworded, in (0, 1].

    Raises:
        TaskError: a file of a task cannot be read.
        ValueError: the threshold is out of range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"the Jaccard index must be in (0, 1], not {threshold}")
    suites = list(benchmarks)
    found: dict[str, list[Contamination]] = defaultdict(list)
    for folder in tasks:
        parts = read_parts(folder)
        found[folder.name] += _canaries(folder.name, parts)
        for suite in suites:
            found[folder.name] += suite.compare(folder.name, parts, threshold)
    return {task: evidence for task, evidence in found.items() if evidence}


def summary(found: Mapping[str, list[Contamination]]) -> dict[str, int]:
    """How many tasks repeat each benchmark."""
    return dict(Counter(name for evidence in found.values() for name in {item.benchmark for item in evidence}))
