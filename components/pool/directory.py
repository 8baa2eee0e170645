"""Writes a task of our own dialect as a Harbor task directory, so that Harbor can run the same files; and reads it.

Invariants: the bytes are a pure function of the task, hence equal digests for equal tasks; what is read as an outline
writes the very files that it was read from.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from components.errors import TaskError
from components.pool.generator import GENERATOR_VERSION, GeneratedTask
from components.pool.outline import Check, Outline, Step
from components.pool.toml_text import toml_text

IMAGE = "longshell-miniature"
"""The base image: bash, coreutils, grep, sed, awk, tar and git. infra/images holds it; the namespace backend uses the
host's own."""

WORKDIR = "/app"
ENVIRONMENT = {"LC_ALL": "C"}
"""Messages in plain ASCII: every byte of an observation is a token the policy reads."""

AGENT_TIMEOUT_S = 60.0
VERIFIER_TIMEOUT_S = 30.0
BUILD_TIMEOUT_S = 60.0

_CHECKS = files("components.pool").joinpath("checks.sh").read_text()
CHECKS_SHA256 = hashlib.sha256(_CHECKS.encode()).hexdigest()
"""A pool whose verifiers were written with other checks is another pool: they may speak another protocol."""

SOLUTION_START = f"#!/bin/bash\ncd {WORKDIR} || exit 1\n"
FILES = "environment/files"
_WORDING = re.compile(r"(\d+):(.+)")
_CHECK = re.compile(r"check (\d+)-([^:\s]+):(\S+) (.+)")
_PROGRAMS = (".sh",)


def write_task(task: GeneratedTask, folder: Path) -> None:
    """Writes `task` into the new directory `folder`."""
    metadata = {
        "difficulty": task.difficulty,
        "category": task.category,
        "tags": list(task.families),
        "generator": GENERATOR_VERSION,
    }
    write_files(outline_files(task.outline, task.task_id, metadata), folder)


def write_files(contents: Mapping[str, str], folder: Path) -> None:
    """Writes texts by their path below `folder`; what ends as a script does is made executable."""
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix in _PROGRAMS:
            path.chmod(0o755)


def outline_files(outline: Outline, task_id: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a task's directory by their path in it. `metadata` is that of task.toml."""
    ids = [name for name, _ in outline.checks]
    document = {
        "schema_version": "1.4",
        "task": {"name": f"longshell/{task_id}"},
        "metadata": {**metadata, "assertion_ids": ids},
        "agent": {"timeout_sec": AGENT_TIMEOUT_S},
        "verifier": {"timeout_sec": VERIFIER_TIMEOUT_S},
        "environment": {
            "build_timeout_sec": BUILD_TIMEOUT_S,
            "cpus": 1,
            "memory_mb": 128,
            "storage_mb": 32,
            "network_mode": "no-network",
        },
    }
    return {"task.toml": toml_text(document), **_texts(outline)}


def _texts(outline: Outline) -> dict[str, str]:
    return {
        "instruction.md": outline.instruction,
        "environment/Dockerfile": _dockerfile(outline),
        "tests/test.sh": verifier_script(outline.checks),
        "solution/solve.sh": f"{SOLUTION_START}{outline.solution}",
        **{f"{FILES}/{name}": text for name, text in outline.files.items()},
    }


def read_outline(folder: Path, guards: Iterable[str]) -> Outline:
    """The outline of a task directory that is one of ours.

    Args:
        guards: ids of the assertions that hold untouched already, as they were measured.

    Raises:
        TaskError: the directory is not written in our dialect, to the last byte.
    """
    try:
        texts = {name: (folder / name).read_text() for name in ("instruction.md", "tests/test.sh", "solution/solve.sh")}
        root = folder / FILES
        given = {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}
        instruction, solution = texts["instruction.md"], texts["solution/solve.sh"].removeprefix(SOLUTION_START)
        outline = Outline(read_steps(instruction, solution, texts["tests/test.sh"], guards), given)
        same = all((folder / name).read_text() == text for name, text in _texts(outline).items())
    except (OSError, ValueError) as error:
        raise TaskError(str(folder), [f"is not of our own dialect: {error}"]) from error
    if not same:
        raise TaskError(str(folder), ["is not of our own dialect: it has other files than its steps would have"])
    return outline


def read_steps(instruction: str, solution: str, verifier: str, guards: Iterable[str]) -> tuple[Step, ...]:
    """Steps by what is asked of them, one a line, the command of each, one a line, and the assertions of a verifier.

    Raises:
        ValueError: lines, commands and assertions do not belong to the same steps.
    """
    wordings = [match[2] for line in instruction.splitlines() if (match := _WORDING.fullmatch(line))]
    checks: dict[int, list[Check]] = {}
    labels: dict[int, str] = {}
    for line in verifier.splitlines():
        if match := _CHECK.fullmatch(line):
            checks.setdefault(int(match[1]), []).append(Check(match[3], tuple(shlex.split(match[4]))))
            labels[int(match[1])] = match[2]
    commands = solution.splitlines()
    if not wordings or len(wordings) != len(commands) or list(labels) != list(range(1, len(wordings) + 1)):
        raise ValueError(f"{len(wordings)} steps are asked for, {len(commands)} solved, {len(labels)} verified")
    guarded = frozenset(guards)
    return tuple(
        Step(
            labels[number],
            wording,
            command,
            tuple(checks[number]),
            frozenset(check.name for check in checks[number] if f"{number}-{labels[number]}:{check.name}" in guarded),
        )
        for number, (wording, command) in enumerate(zip(wordings, commands, strict=True), 1)
    )


def verifier_script(checks: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """`tests/test.sh`: one JSON line an assertion on stdout, the verdict in /logs/verifier/reward.txt."""
    return f"{verifier_start(checks)}finish\n"


def verifier_start(checks: Sequence[tuple[str, tuple[str, ...]]], workdir: str = WORKDIR) -> str:
    """A verifier up to its last assertion, for `finish` or for what else is to be asked."""
    ids = ",".join(f'\\"{name}\\"' for name, _ in checks)
    calls = "".join(f"check {name} {shlex.join(call)}\n" for name, call in checks)
    library = _CHECKS.replace(f"cd {WORKDIR} ", f"cd {shlex.quote(workdir)} ")
    return f'#!/bin/bash\n{library}\nsay "\\"collected\\":[{ids}]"\n{calls}'


def _dockerfile(outline: Outline) -> str:
    variables = "".join(f"ENV {name}={value}\n" for name, value in ENVIRONMENT.items())
    copy = f"COPY files/ {WORKDIR}/\n" if outline.files else ""
    return f"FROM {IMAGE}\n{variables}WORKDIR {WORKDIR}\n{copy}"
