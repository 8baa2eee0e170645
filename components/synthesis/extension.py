"""Steps of ours after those of a task in another dialect: its files stay as they are, ours run after them.

Invariants: what is asked, done and verified of the task itself stays word for word; an extended task reads back as the
same task with the same steps. Our assertions are told on the verifier's channel before the task's own tests run, and
those tests are given the channel's secret in turn: a pytest goes on streaming, and `finished` is told by who ends last.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from components.config import SandboxConfig
from components.errors import TaskError
from components.pool import load_task
from components.pool.directory import read_steps, verifier_start
from components.pool.outline import Outline

ORIGIN = "origin.sh"
"""What the task's own solve.sh and test.sh are called in an extended task."""
SOLUTION_START = "#!/bin/bash\nbash /solution/origin.sh\ncd {workdir} || exit 1\n"
INSTRUCTION_MARK = "\n\nAfter that, in {workdir}, one after the other:\n\n"
TESTS_START = "#!/bin/bash\nenvironment=$(export -p)  # the task's own tests get it back\n"
VERDICT = "origin:verdict"
"""The assertion that the task's own tests give their verdict for."""
_TESTS = f"""
origin_passes() {{
  local reward
  [[ -f /logs/verifier/reward.txt ]] && read -r reward < /logs/verifier/reward.txt
  [[ $reward == 1 || $reward == 1.0 ]]
}}
say '"collected":["{VERDICT}"]'
(
  unset GIT_ALLOW_PROTOCOL GIT_CONFIG_GLOBAL LC_ALL
  eval "$environment"
  . /tests/{ORIGIN}
) 4< <(printf '%s\\n' "$nonce")
check {VERDICT} origin_passes
finish
"""


@dataclass(frozen=True, slots=True)
class Extension:
    """A task in another dialect, to which steps are added.

    Attributes:
        folder: a directory that holds its files.
        workdir: where its steps are done.
        instruction, solution, tests: the task's own, without any step of ours.
    """

    folder: Path
    workdir: str
    instruction: str
    solution: str
    tests: str

    def files(self, outline: Outline) -> Mapping[str, str]:
        """The texts that make the task in `folder` one with these steps after its own, by their path."""
        start = SOLUTION_START.format(workdir=shlex.quote(self.workdir))
        ours = verifier_start(outline.checks, self.workdir)
        return {
            "instruction.md": f"{self.instruction.rstrip()}{self._mark}{outline.instruction}",
            f"solution/{ORIGIN}": self.solution,
            "solution/solve.sh": f"{start}{outline.solution}",
            f"tests/{ORIGIN}": self.tests,
            "tests/test.sh": f"{TESTS_START}{ours.removeprefix('#!/bin/bash')}{_TESTS}",
        }

    @property
    def _mark(self) -> str:
        return INSTRUCTION_MARK.format(workdir=self.workdir)


def read_extension(folder: Path, guards: Iterable[str]) -> tuple[Extension, Outline]:
    """A task in another dialect, and the steps that it was extended by; none for a task as it came.

    Raises:
        TaskError: it has no solution, or files of the names that ours would have.
    """
    task = load_task(folder)
    if task.solution_dir is None:
        raise TaskError(str(folder), ["solution/solve.sh is missing: there is nothing to go on from"])
    workdir = task.sandbox_spec(SandboxConfig()).workdir
    solution, tests = _read(folder / "solution" / "solve.sh"), _read(folder / "tests" / "test.sh")
    origins = [folder / "solution" / ORIGIN, folder / "tests" / ORIGIN]
    if not any(path.exists() for path in origins):
        return Extension(folder, workdir, task.instruction, solution, tests), Outline((), {})
    mark = INSTRUCTION_MARK.format(workdir=workdir)
    instruction, _, ours = task.instruction.partition(mark)
    start = SOLUTION_START.format(workdir=shlex.quote(workdir))
    if not ours or not solution.startswith(start):
        raise TaskError(str(folder), [f"{ORIGIN}: has a name that an extended task needs"])
    found = Extension(folder, workdir, instruction, _read(origins[0]), _read(origins[1]))
    try:
        steps = read_steps(ours, solution.removeprefix(start), tests, guards)
    except ValueError as error:
        raise TaskError(str(folder), [f"is no extended task: {error}"]) from error
    return found, Outline(steps, {})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(str(path), [f"cannot be read: {error}"]) from error
