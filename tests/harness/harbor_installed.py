"""A Harbor in an environment of its own: the one that LONGSHELL_HARBOR names, or one that is made, once, under var/."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSION = "0.25.0"
LEAST = (3, 12)
PLACE = Path(__file__).parents[2] / "var" / f"harbor-{VERSION}"
INSTALL_TIMEOUT_S = 900


def installed() -> Path:
    """The virtual environment of a Harbor. Skips the test, with the reason, where there can be none."""
    named = os.environ.get("LONGSHELL_HARBOR")
    if named:
        return Path(named)
    ready = PLACE / "ready"
    if not ready.is_file():
        python = next(_pythons(), None)
        if python is None:
            pytest.skip(f"Harbor needs Python {LEAST[0]}.{LEAST[1]}, and there is none here")
        shutil.rmtree(PLACE, ignore_errors=True)
        _run(python, "-m", "venv", str(PLACE))
        _run(str(PLACE / "bin" / "python"), "-m", "pip", "install", "-q", f"harbor=={VERSION}")
        ready.touch()
    return PLACE


def _pythons() -> Iterator[str]:
    """Interpreters that are new enough: of uv, of pyenv, of the path."""
    candidates = []
    if uv := shutil.which("uv"):
        candidates.append(_said(uv, "python", "find", "--no-python-downloads", f">={LEAST[0]}.{LEAST[1]}"))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(path) for path in sorted(pyenv.glob("versions/3.*/bin/python3"), reverse=True)]
    candidates += [shutil.which(f"python3.{minor}") or "" for minor in range(LEAST[1], LEAST[1] + 4)]
    for python in filter(None, candidates):
        if _said(python, "-c", f"import sys, venv; print(sys.version_info[:2] >= {LEAST})") == "True":
            yield python


def _said(*command: str) -> str:
    """What a command prints, nothing if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        pytest.skip(f"Harbor {VERSION} cannot be installed here: {(done.stderr or done.stdout).strip()[-300:]}")
