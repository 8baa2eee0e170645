"""Leaves out the commands of a reference solution, one at a time: what no command is needed for, no verifier looks at.

Invariant: a command that may be left out proves nothing by itself, solutions are not minimal; a task is refused only
where something that its instruction names was then not there, or where no command at all is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from components.curation.names import Told
from components.curation.result import UNPROBED, Flag, Refused, Rejection, listed, quoted
from components.curation.rig import SOLVE, Budget, Rig
from components.curation.traces import Traces, made, traces
from components.sandbox import Sandbox

SPLIT_S = 30.0
MOST_LINES = 400
SEARCH_BYTES = 32 << 20
SPLIT = r"""chunk=
while IFS= read -r line || [[ -n $line ]]; do
  chunk+=$line$'\n'
  [[ $line =~ (\\+)$ ]] && (( ${#BASH_REMATCH[1]} % 2 )) && continue
  if [[ -z $(bash -n <<<"$chunk" 2>&1) ]]; then printf '%s\0' "$chunk"; chunk=; fi
done
[[ -z $chunk ]] || printf '%s\0' "$chunk"
"""
"""Bash says of every beginning whether it is whole; an open here-document it warns of. Nothing is run."""
_INERT = re.compile(
    r"^\s*(?:#|$|set\b|cd\b|export\b|echo\b[^>|]*$|printf\b[^>|]*$|exit\b|sleep\b|pwd\b|ls\b|cat\s+[^<>|]*$|true\b|:"
    r"|apt(?:-get)?\b|sudo apt|mkdir\b|source\b)"
)
"""What prepares or tells and does nothing that a verifier could see."""


async def ablate(rig: Rig, before: Traces, after: Traces, told: Told, most: int, budget: Budget) -> list[Flag]:
    """Runs the solution without each of its first `most` commands.

    Raises:
        Refused: the verifier is demonstrably weak.
        InfraFault: the infrastructure failed.
    """
    if not most:
        return []
    asked = [path for path in made(before, after) if told.asks_for(path)]
    needless: list[str] = []
    async with rig.box() as box:
        commands = await _commands(rig, box)
        candidates = [number for number, command in enumerate(commands) if not _is_inert(command)]
        for number in candidates[:most]:
            if budget.spent:
                return [budget.flag("leaving commands out"), *_flags(needless, most)]
            await box.reset()
            await rig.solve(box, "".join(commands[:number] + commands[number + 1 :]))
            if await rig.passes(box):
                needless.append(quoted(commands[number]))
                await _require_unasked(box, asked, needless[-1])
    if len(needless) == len(candidates) > 1:
        raise Refused(Rejection.WEAK_VERIFIER, f"without any one of {listed(needless)} every assertion passes")
    flags = _flags(needless, len(candidates[:most]))
    if len(candidates) > most:
        flags.append(Flag(UNPROBED, f"{len(candidates) - most} more commands of the solution were not left out"))
    return flags


async def _commands(rig: Rig, box: Sandbox) -> list[str]:
    """The solution's commands at its top level; only one where it is too long."""
    assert rig.task.solution_dir is not None, "it was run before"
    script = (rig.task.solution_dir / "solve.sh").read_bytes()
    if script.count(b"\n") > MOST_LINES:
        return [script.decode("utf-8", "surrogateescape")]
    split = await box.exec(["/bin/bash", "-c", SPLIT, SOLVE], timeout_s=SPLIT_S, stdin=script, merge_stderr=False)
    return [part for part in split.output.decode("utf-8", "surrogateescape").split("\0") if part]


def _is_inert(command: str) -> bool:
    return all(_INERT.match(line) for line in command.splitlines())


async def _require_unasked(box: Sandbox, asked: Sequence[str], command: str) -> None:
    there = await traces(box, SEARCH_BYTES)
    missing = [] if there is None else [path for path in asked if path not in there]
    if missing:
        detail = f"without {command!r} there is no {listed(missing)}, as was asked, and every assertion passes"
        raise Refused(Rejection.WEAK_VERIFIER, detail)


def _flags(needless: list[str], tried: int) -> list[Flag]:
    if not needless:
        return []
    detail = f"{len(needless)} of {tried} commands of the solution may be left out, such as {needless[0]!r}"
    return [Flag(Rejection.WEAK_VERIFIER, detail)]
