"""How long a task is: the turns of its reference solution, the words of its instruction.

A turn is one command as one would type it at a prompt: the shortest run of lines that bash reads as complete. What only
sets the stage (comments, `set`, `cd`) is none.
"""

from __future__ import annotations

import shlex
import subprocess
from functools import lru_cache

STAGE = frozenset({"set", "cd", "shopt", "export"})
_READ_S = 10.0
"""Deadline of reading one command; it takes milliseconds."""


def words(instruction: str) -> int:
    """Words of an instruction, as a person counts them."""
    return len(instruction.replace(":", " ").split())


@lru_cache(maxsize=4096)
def turns(script: str) -> int:
    """Turns of a reference solution. A script that bash cannot read to its end has its lines up to there as one."""
    return sum(_does_something(command) for command in commands(script))


def commands(script: str) -> list[str]:
    """The commands of a bash script, comments and all, in order."""
    found: list[str] = []
    pending: list[str] = []
    for line in script.splitlines():
        if not pending and not line.strip():
            continue
        pending.append(line)
        text = "\n".join(pending)
        if not line.endswith("\\") and (_is_plain(text) or _is_complete(text)):
            found.append(text)
            pending = []
    return [*found, "\n".join(pending)] if pending else found


def _is_plain(text: str) -> bool:
    """Whether a text is complete to the eye: one line of words. Most are, and asking bash takes a process."""
    if not all(each.isalnum() or each in " ._/-+=,:'\"{}$();>|*^#!&" for each in text) or "<<" in text:
        return False
    try:
        parts = shlex.split(text)
    except ValueError:
        return False
    nested = {"if", "for", "while", "until", "case", "select", "function", "{", "then", "do", "else"}
    opened = text.count("(") != text.count(")") or text.count("{") != text.count("}")
    return not (opened or nested & set(parts) or text.rstrip().endswith(("|", "&&", "{", "(", "()")))


def _is_complete(text: str) -> bool:
    """Whether bash reads `text` as whole commands. It runs nothing of it."""
    read = _read(text)
    return read.returncode == 0 and not read.stderr


def _read(text: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/bash", "--norc", "-n"]
    return subprocess.run(command, input=f"{text}\n", capture_output=True, text=True, timeout=_READ_S, check=False)


def _does_something(command: str) -> bool:
    lines = [line for line in command.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    alone = "&&" not in command and ";" not in command
    return bool(lines) and not (alone and lines[0].split()[0] in STAGE)
