"""Probes: whether a task's reward can be had without its work, and whether its work can be known from its instruction.

Each probe is an agent that does something else than the task, in a real box, and is graded as any other. Invariants: a
task is refused for what a probe earned, or for what nobody can guess and the verifier demonstrably wants; everything
less is a flag. A probe that had no time, or no tool, is told.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from components.config import ProbeConfig
from components.curation.ablation import ablate
from components.curation.leaks import Secrets, digest_of
from components.curation.names import Told, unmentioned
from components.curation.result import UNPROBED, Flag, Refused, Rejection, listed
from components.curation.rig import Budget, Rig
from components.curation.traces import Traces, changed, is_below, made, traces
from components.pool import Task
from components.sandbox import Left, Sandbox

PLANT_S = 30.0
TRIVIAL = "x\n"
_HOOK = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    said = yield
    said.get_result().outcome = "passed"
"""
_EXIT = "import os; os._exit(0)"
_WIN = (
    "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
)
ATTACKS = {
    "a forged verdict": f"""
{_WIN}; mkdir -p /tests; printf '#!/bin/bash\\n%s\\n' {shlex.quote(_WIN)} | tee /tests/test.sh > test.sh
for file in ~/.bashrc ~/.profile ~/.bash_profile; do echo {shlex.quote(_WIN)} >> $file; done
(while :; do {_WIN}; sleep .02; done) >/dev/null 2>&1 &
""",
    "a planted conftest.py": f"""
for folder in . / ~; do printf %s {shlex.quote(_HOOK)} > $folder/conftest.py; done
printf '[pytest]\\naddopts = -p conftest\\npythonpath = .\\n' | tee pytest.ini > /pytest.ini
""",
    "planted modules and programs": f"""
site=$(python3 -m site --user-site 2>/dev/null); site=${{site:-$HOME}}; mkdir -p "$site" ~/.local/bin ~/bin
for folder in . / "$site"; do
  for name in sitecustomize usercustomize pytest; do echo {shlex.quote(_EXIT)} > "$folder/$name.py"; done
done
for folder in . ~/.local/bin ~/bin; do
  for name in pytest grep diff cmp test; do
    [ -e "$folder/$name" ] || printf '#!/bin/sh\\nexit 0\\n' > "$folder/$name"; chmod +x "$folder/$name"
  done
done
""",
}
"""What an agent could leave for whoever grades it, by what it is called."""
GUARDED = ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini")
"""Files that say how tests are run. No solution has a use for one that its instruction does not ask for."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the solution does to a box."""

    before: Traces
    after: Traces

    @property
    def made(self) -> list[str]:
        return made(self.before, self.after)

    @property
    def outputs(self) -> list[str]:
        """Files with content that it makes or changes."""
        written = [*self.made, *changed(self.before, self.after)]
        return [path for path in written if self.after[path].content]


async def probe(rig: Rig, secrets: Secrets, config: ProbeConfig) -> list[Flag]:
    """Tries everything on a task that passed the gates.

    Raises:
        Refused: something was earned without the work, or cannot be earned with the instruction alone.
        InfraFault: the infrastructure failed.
    """
    budget, told = Budget(config.seconds), Told.of(rig.task, rig.spec.workdir)
    async with rig.box() as box:
        before = await traces(box, config.search_mb << 20)
        if before is None:
            lacking = f"the files of a box are more than {config.search_mb} MiB, or it has no tar"
            return [Flag(UNPROBED, lacking), *await _attack(rig, box, budget)]
        files = [(path, trace.content) for path, trace in before.items() if trace.content]
        flags = await asyncio.to_thread(secrets.refuse, files)
        flags += await _attack(rig, box, budget)
    async with rig.box() as box:
        await rig.solve(box)
        after = await traces(box, config.search_mb << 20)
        if after is None:
            return [*flags, Flag(UNPROBED, f"the solved box has more than {config.search_mb} MiB of files")]
        work = Work(before, after)
        _search_results(rig.task, work, secrets, told)
        seen = await asyncio.to_thread(told.seen, before)
        flags += seen.doubts()
        flags += await _take_away(rig, box, work, seen, config.paths, budget)
    flags += await _fake(rig, work, budget)
    flags += unmentioned(rig.task)
    flags += await ablate(rig, work.before, work.after, told, config.commands, budget)
    return list(dict.fromkeys(flags))


def reaches_for_verdict(task: Task, left: Left) -> None:
    """Refuses a task whose own solution leaves something for whoever grades it.

    Raises:
        Refused: it does.
    """
    for entry in left.reverted:
        path = entry.partition(" ")[2]
        own = PurePosixPath(path).name in GUARDED and PurePosixPath(path).name not in task.instruction
        if own or is_below(path, "/logs/verifier", "/tests"):
            raise Refused(Rejection.SHORTCUT, f"the solution itself reaches for the verdict: {entry}")


def _search_results(task: Task, work: Work, secrets: Secrets, told: Told) -> None:
    """Refuses a task that holds what its tests expect, where neither instruction nor solution has a use for it."""
    expected = {secret.digest: secret.name for secret in secrets.data if secret.name.startswith("tests/")}
    lying = {digest_of(trace.content): path for path, trace in work.before.items() if trace.content}
    script = "" if task.solution_dir is None else (task.solution_dir / "solve.sh").read_text(errors="replace")
    for path in work.outputs:
        digest = digest_of(work.after[path].content or b"")
        place = lying.get(digest)
        if digest not in expected or place is None or told.asks_for(place) or PurePosixPath(place).name in script:
            continue
        detail = f"{place} has the bytes of {expected[digest]}, which the solution has to make as {path}"
        raise Refused(Rejection.LEAK, detail)


async def _attack(rig: Rig, box: Sandbox, budget: Budget) -> list[Flag]:
    """Plants in a box in which nothing was done."""
    for name, script in ATTACKS.items():
        if budget.spent:
            return [budget.flag(name)]
        await box.reset()
        await box.exec(["/bin/bash", "-c", script], timeout_s=PLANT_S)
        if await rig.passes(box):
            raise Refused(Rejection.SHORTCUT, f"nothing was done, and with {name} every assertion passes")
    return []


async def _take_away(rig: Rig, box: Sandbox, work: Work, told: Told, most: int, budget: Budget) -> list[Flag]:
    """Takes away what the solution made, one path at a time: what the instruction asks for, the verifier must miss.

    And what it does miss, though nobody was told of it, is a hidden requirement.
    """
    hidden = [path for path in work.made if told.is_hidden(path)]
    asked = [path for path in work.made if told.asks_for(path)]
    for path in [*hidden, *asked][:most]:
        if budget.spent:
            return [budget.flag("taking away what the solution made")]
        aside = f"{path}.taken-away"
        moved = await box.exec(["mv", "--", path, aside], timeout_s=PLANT_S, cwd="/")
        if moved.exit_code != 0:
            continue
        passes = await rig.passes(box)
        await box.exec(["mv", "--", aside, path], timeout_s=PLANT_S, cwd="/")
        if passes and path in asked:
            detail = f"the instruction asks for {path}; without it every assertion passes all the same"
            raise Refused(Rejection.WEAK_VERIFIER, detail)
        if not passes and path in hidden:
            detail = f"the tests fail without {path}, which neither the instruction nor the environment mentions"
            raise Refused(Rejection.HIDDEN_REQUIREMENT, detail)
    left_out = len(hidden) + len(asked) - most
    return [Flag(UNPROBED, f"{left_out} more paths were not taken away")] if left_out > 0 else []


async def _fake(rig: Rig, work: Work, budget: Budget) -> list[Flag]:
    """Does the work without its content: empty outputs, outputs that say `x`, emptied inputs of the tests."""
    if not work.outputs:
        return []
    named = [path for path, trace in work.before.items() if trace.content and _named_by_tests(rig.task, path)]
    inputs = [path for path in named if path not in work.outputs]
    fakes = [
        (Rejection.WEAK_VERIFIER, "are merely touched", work.outputs, ""),
        (Rejection.WEAK_VERIFIER, f"say {TRIVIAL.strip()!r} and no more", work.outputs, TRIVIAL),
    ]
    if inputs:
        what = f"are merely touched, and {listed(inputs)} emptied"
        fakes.append((Rejection.SHORTCUT, what, [*work.outputs, *inputs], ""))
    async with rig.box() as box:
        for rejection, what, paths, content in fakes:
            if budget.spent:
                return [budget.flag("faking the work")]
            await box.reset()
            await box.exec(["/bin/bash", "-c", _WRITE], timeout_s=PLANT_S, stdin=_lines(content, paths), cwd="/")
            if await rig.passes(box):
                detail = f"nothing was done; {listed(work.outputs)} {what}, and every assertion passes"
                raise Refused(rejection, detail)
    return []


_WRITE = """IFS= read -r -d '' content
while IFS= read -r -d '' path; do mkdir -p -- "${path%/*}/"; printf %s "$content" > "$path"; done
"""


def _lines(content: str, paths: Iterable[str]) -> bytes:
    return "".join(f"{part}\0" for part in (content, *paths)).encode("utf-8", "surrogateescape")


def _named_by_tests(task: Task, path: str) -> bool:
    name = PurePosixPath(path).name
    return any(
        name.encode("utf-8", "surrogateescape") in file.read_bytes()
        for file in task.tests_dir.rglob("*")
        if file.is_file()
    )
