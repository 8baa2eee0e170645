"""A task as a judge is shown it: data, in lines that cannot be mistaken for ours.

Invariant: whatever a task holds, every line that comes of it begins with `| `. A task can therefore neither end the
quotation nor say anything outside it; what is cut is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from components.curation.result import GateResult
from components.pool import Task

FILE_BYTES = 16_000
PART_BYTES = 48_000
"""Of one part of a task (environment, solution, tests) that are shown."""
NAMES = 200
"""Files of a part that are named at all."""


def quoted(text: str) -> str:
    """Every line behind `| `, whatever ends it; characters that move a cursor are shown as such."""
    shown = "".join(char if char in "\n\t" or char.isprintable() else _visible(char) for char in _newlines(text))
    return "\n".join(f"| {line}" for line in shown.split("\n"))


def show(task: Task, evidence: GateResult | None, probed: bool = False) -> str:
    """The whole task, and what running it showed; `probed` where it was tried to earn its reward without its work."""
    parts = [f"INSTRUCTION\n{quoted(task.instruction)}"]
    folders = {"ENVIRONMENT": task.environment_dir, "TESTS": task.tests_dir, "SOLUTION": task.path / "solution"}
    parts += [f"{name}\n{_folder(folder)}" for name, folder in folders.items()]
    if evidence is not None:
        parts.append(f"MEASURED\n{_measured(evidence, probed)}")
    return "\n\n".join(parts)


def _measured(evidence: GateResult, probed: bool) -> str:
    before = len(evidence.pass_to_pass)
    lines = [
        f"In a fresh sandbox the solution passed all {len(evidence.assertion_ids)} assertions, every time.",
        f"Untouched, the environment passes {before} of them" + (":" if before else "."),
    ]
    lines += [quoted(name) for name in evidence.pass_to_pass[:NAMES]]
    if probed:
        lines.append("It was tried to pass the tests without the work, and to find them in the box: neither worked.")
    if evidence.flags:
        lines += ["What execution showed besides, and proves nothing:", *(quoted(str(flag)) for flag in evidence.flags)]
    return "\n".join(lines)


def _folder(folder: Path) -> str:
    if not folder.is_dir():
        return "(there is none)"
    lines, left = [], PART_BYTES
    files = list(_files(folder))
    for path in files[:NAMES]:
        with path.open("rb") as file:
            data = file.read(min(FILE_BYTES, left) + 1)
        size, name = path.stat().st_size, path.relative_to(folder)
        if b"\0" in data:
            lines.append(quoted(f"file {name}, {size} bytes, not text"))
            continue
        shown = data[: min(FILE_BYTES, left)]
        left -= len(shown)
        cut = "" if len(shown) == size else f", of which {len(shown)} are shown"
        lines.append(quoted(f"file {name}, {size} bytes{cut}"))
        if shown:
            lines.append(quoted(shown.decode("utf-8", "replace").removesuffix("\n")))
    if len(files) > NAMES:
        lines.append(f"({len(files) - NAMES} more files)")
    return "\n".join(lines) or "(it is empty)"


def _files(folder: Path) -> Iterator[Path]:
    """Regular files, Dockerfiles and scripts first; links are not followed, what they lead to is shown at its place."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    first = [path for path in found if path.name in ("Dockerfile", "test.sh", "solve.sh")]
    yield from first
    yield from (path for path in found if path not in first)


def _newlines(text: str) -> str:
    return "\n".join(text.splitlines())


def _visible(char: str) -> str:
    return f"\\u{ord(char):04x}"
