"""Runs in every Python of the verifier, before anything else.

The working folder is the agent's: a `pytest.py` or `json.py` there would be what `python -m pytest` runs. So that one
command is begun anew with -P, and the folder is looked into last. Every other program finds its modules where it looks
for them.
"""

import os
import sys

PLUGINS, OURS = "PYTEST_PLUGINS", "longshell_report"


def runs_pytest(argv: list[str]) -> bool:
    """Whether this is `python [options] -m pytest ...`."""
    options = argv[1 : argv.index("-m")] if "-m" in argv else argv
    return all(word.startswith("-") for word in options) and argv[len(options) + 2 :][:1] == ["pytest"]


asked = [name for name in os.environ.get(PLUGINS, "").split(",") if name not in ("", OURS)]
os.environ[PLUGINS] = ",".join([*asked, OURS])
if sys.version_info >= (3, 11) and runs_pytest(sys.orig_argv):
    if not sys.flags.safe_path:
        os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])
    sys.path.append(os.getcwd())
