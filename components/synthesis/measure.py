"""How long a task is: the turns of its reference solution, the words of its instruction.

A turn is one command as one would type it at a prompt: the shortest run of lines that bash reads as complete. What only
sets the stage (comments, `set`, `cd`) is none.
"""

from __future__ import annotations

import subprocess
from functools import lru_cache

from components.curation.ablation import MOST_LINES, SPLIT, SPLIT_S

STAGE = frozenset({"set", "cd", "shopt", "export"})


def words(instruction: str) -> int:
    """Words of an instruction, as a person counts them."""
    return len(instruction.replace(":", " ").split())


@lru_cache(maxsize=4096)
def turns(script: str) -> int:
    """Turns of a reference solution. What bash cannot read to its end is one; of a long script every line is one."""
    return sum(_does_something(command) for command in commands(script))


def commands(script: str) -> list[str]:
    """The commands of a bash script, comments and all, in order. Nothing of it is run."""
    if script.count("\n") > MOST_LINES:
        return script.splitlines()
    text = script.encode("utf-8", "surrogateescape")
    split = subprocess.run(
        ["/bin/bash", "--norc", "-c", SPLIT], input=text, capture_output=True, timeout=SPLIT_S, check=True
    )
    return [part for part in split.stdout.decode("utf-8", "surrogateescape").split("\0") if part]


def _does_something(command: str) -> bool:
    lines = [line for line in command.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    alone = "&&" not in command and ";" not in command
    return bool(lines) and not (alone and lines[0].split()[0] in STAGE)
