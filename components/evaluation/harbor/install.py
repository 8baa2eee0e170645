"""The environment that Harbor runs in: another Python than ours, made once.

Invariant: an environment is used only when it is complete; one whose making was interrupted is made anew. Two jobs that
need it at once make it once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from components.config import HarborConfig
from components.errors import ConfigError, ServiceError

VERSION = "0.25.0"
"""Its result files were read by us, its Terminus-2 is what our loop is held against."""
LEAST = (3, 12)
BESIDE = ("docker", "pyte", "wcwidth")
"""What our sandboxes import and Harbor does not bring, in the versions that we run; docker where we have it."""
INSTALL_TIMEOUT_S = 900.0
READY = "ready"


def harbor_environment(config: HarborConfig, home: Path, tell: Callable[[str], None]) -> Path:
    """The virtual environment that holds Harbor: the one that is named, or one that is made in `home`.

    Raises:
        ConfigError: the one that is named has no Harbor, or another version of it (whose name would then stand beside
            the numbers of this one); or there is no Python that is new enough.
        ServiceError: it cannot be installed.
    """
    if config.venv is not None:
        named = Path(config.venv)
        held = [place.name for place in named.glob("lib/python3*/site-packages/harbor-*.dist-info")]
        if held != [f"harbor-{VERSION}.dist-info"] or not (named / "bin" / "harbor").is_file():
            found = ", ".join(held) or "no Harbor"
            raise ConfigError([f"evaluation.harbor.venv: {named} holds {found}, not Harbor {VERSION}"], "configuration")
        return named
    folder = home / f"harbor-{VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home / f".harbor-{VERSION}.lock"):
        if not (folder / READY).is_file():
            python = find_python(config.python)
            tell(f"installing Harbor {VERSION} with {python}, once")
            shutil.rmtree(folder, ignore_errors=True)
            _run(python, "-m", "venv", str(folder))
            _run(str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"harbor=={VERSION}", *_beside())
            (folder / READY).touch()
    return folder


def find_python(given: str | None = None) -> str:
    """An interpreter that is new enough for Harbor.

    Raises:
        ConfigError: there is none; says where it was looked for.
    """
    for python in [given] if given is not None else _candidates():
        if _said(python, "-c", f"import sys, venv; print(sys.version_info[:2] >= {LEAST})") == "True":
            return python
    wanted = f"Harbor needs Python {LEAST[0]}.{LEAST[1]} or newer, with its venv module"
    where = f"{given} is none" if given is not None else "there is none of uv's, of pyenv's or on the path"
    advice = "install one and name it in evaluation.harbor.python, or evaluate with evaluation.harness: native"
    raise ConfigError([f"evaluation.harness: harbor: {wanted}; {where}: {advice}"], "configuration")


def _candidates() -> Iterator[str]:
    """Interpreters of uv, of pyenv, of the path. The newest first, as far as that can be told."""
    if uv := shutil.which("uv"):
        yield _said(uv, "python", "find", "--no-python-downloads", f">={LEAST[0]}.{LEAST[1]}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (str(path) for path in sorted(pyenv.glob("versions/3.*/bin/python3"), reverse=True))
    yield from (shutil.which(f"python3.{minor}") or "" for minor in range(LEAST[1] + 4, LEAST[1] - 1, -1))


def _beside() -> Iterator[str]:
    for name in BESIDE:
        try:
            yield f"{name}=={version(name)}"
        except PackageNotFoundError:  # docker is an extra of ours
            continue


def _said(*command: str) -> str:
    """What a command prints, nothing if it fails or is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"Harbor {VERSION} was not installed within {INSTALL_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise ServiceError(f"Harbor {VERSION} cannot be installed: {' '.join(command[1:4])}: {said}")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
