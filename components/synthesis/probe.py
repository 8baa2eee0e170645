"""What a task's own solution leaves in the working directory, seen by running it twice, each time in a fresh box.

Invariant: a file that is told was made or changed by the solution, is short plain text, and was the same both times.
Whether the task may be trained on is not asked here: the gates have said so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from components.config import SandboxConfig
from components.curation import Refused
from components.curation.rig import Rig
from components.errors import TaskError
from components.pool import Task
from components.sandbox import Sandbox, SandboxBackend
from components.synthesis.steps import Lines

RUNS = 2
_LIST_S = 30.0
LARGEST_FILE = 4 << 10
MOST_LINES = 40
"""What is asserted of a file stands in the verifier, line by line."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_FILES = f"find . -maxdepth 1 -type f -size -{LARGEST_FILE + 1}c -exec sha256sum {{}} +"
_NAMES = "ls -A"


@dataclass(frozen=True, slots=True)
class Seen:
    """Files that a solution leaves, by their path in the working directory, and every name that stands there."""

    files: Mapping[str, Lines]
    names: frozenset[str]


async def look(task: Task, backend: SandboxBackend, sandbox: SandboxConfig, kept: Path) -> Seen:
    """What the solution of `task` leaves; from the folder `kept` where it was seen before.

    Raises:
        TaskError: the task has no solution, or its box cannot be built.
        InfraFault: the infrastructure failed.
    """
    path = kept / f"{task.ref.digest}.json"
    if not path.exists():
        try:
            rig = Rig.of(task, backend, sandbox)
            runs = [await _run(rig) for _ in range(RUNS)]
        except Refused as refusal:
            raise TaskError(str(task.path), [f"{refusal.rejection}: {refusal.detail}"]) from refusal
        first = runs[0].files
        files = {name: lines for name, lines in first.items() if all(run.files.get(name) == lines for run in runs)}
        names = sorted(frozenset[str]().union(*(run.names for run in runs)))
        kept.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".partial")
        temporary.write_text(json.dumps({"files": files, "names": names}))
        temporary.rename(path)
    document = json.loads(path.read_text())
    return Seen({name: tuple(lines) for name, lines in document["files"].items()}, frozenset(document["names"]))


async def _run(rig: Rig) -> Seen:
    workdir = rig.spec.workdir
    async with rig.box() as box:
        before, _ = await _listed(box, workdir)
        await rig.solve(box)
        after, names = await _listed(box, workdir)
        made = sorted(name for name, digest in after.items() if before.get(name) != digest and _NAME.fullmatch(name))
        found = {name: _lines(await box.get(f"{workdir}/{name}", max_bytes=LARGEST_FILE)) for name in made}
        return Seen({name: lines for name, lines in found.items() if lines is not None}, names)


async def _listed(box: Sandbox, workdir: str) -> tuple[dict[str, str], frozenset[str]]:
    """(digest by name, all names) of a folder. Names that `sha256sum` has to quote are left out."""
    said = [
        (await box.exec(["bash", "-c", command], timeout_s=_LIST_S, cwd=workdir, merge_stderr=False)).output
        for command in (_FILES, _NAMES)
    ]
    digests, names = (output.decode("utf-8", "replace").splitlines() for output in said)
    pairs = [line.split("  ./", 1) for line in digests if "  ./" in line]
    return {name: digest for digest, name in pairs}, frozenset(names)


def _lines(content: bytes) -> Lines | None:
    """The lines of a plain text; None for what is none, or is long."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = tuple(text.split("\n")[:-1])
    plain = text.endswith("\n") and all(line.isprintable() for line in lines)
    return lines if plain and 0 < len(lines) <= MOST_LINES else None
