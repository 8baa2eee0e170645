"""Runs in every Python of the verifier, before anything else.

The working folder is the agent's: a `pytest.py` or `json.py` there would be what `python -m pytest` runs. So that one
command is begun anew with -P, or what stands for it before Python 3.11, and the folder is looked into last. Every other
program finds its modules where it looks for them.
"""

from __future__ import annotations

import os
import sys

PLUGINS, OURS = "PYTEST_PLUGINS", "longshell_report"
HAS_SAFE_PATH = sys.hexversion >= 0x030B0000
VALUED = ("W", "X")
"""Options of Python that may have their value as the next word."""
MODULE = "pytest"
SAFELY = f"""
import sys
if sys.path[0] == "":
    del sys.path[0]
    import os
    sys.path.append(os.getcwd())
import runpy
runpy.run_module("{MODULE}", run_name="__main__", alter_sys=True)
"""


def as_it_began() -> list[str]:
    """The words of this command."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def runs_pytest(argv: list[str]) -> tuple[list[str], list[str]] | None:
    """Python's options and pytest's arguments, where this is `python [options] -m pytest ...`; else None."""
    place = 1
    while place < len(argv) and argv[place][:1] == "-" and argv[place][1:2] not in ("", "-", "c"):
        word = argv[place]
        place += 1
        if word[1] in VALUED:
            place += len(word) == 2
            continue
        flags, given, module = word.partition("m")
        if given:
            options = argv[1 : place - 1] + ([flags] if len(flags) > 1 else [])
            words = [module, *argv[place:]] if module else argv[place:]
            return (options, words[1:]) if words[:1] == [MODULE] else None
    return None


asked = [name for name in os.environ.get(PLUGINS, "").split(",") if name not in ("", OURS)]
os.environ[PLUGINS] = ",".join([*asked, OURS])
command = runs_pytest(as_it_began())
if command is not None:
    if not HAS_SAFE_PATH:
        os.execv(sys.executable, [sys.executable, *command[0], "-c", SAFELY, *command[1]])
    if not sys.flags.safe_path:
        os.execv(sys.executable, [sys.executable, "-P", *as_it_began()[1:]])
    sys.path.append(os.getcwd())
