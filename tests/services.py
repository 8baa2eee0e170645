"""Real services for tests, each started at most once a session and stopped when pytest ends."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from tasks.site import Site
from tasks.stack import ports
from tasks.stack.supervisor import Stack


@functools.cache
def home() -> Path:
    """A state directory of the session, with a path short enough for Ray's sockets."""
    return Path(tempfile.mkdtemp(prefix="lst-"))


def site(**changes: object) -> Site:
    """The session's site."""
    values = {
        "home": home(),
        "store_url": str(home() / "store"),
        "tracking_uri": f"sqlite:///{home()}/mlflow/mlflow.db",
        "jobs_package": "tests.fake_jobs",
        "ports": {name: ports.any_free() for name in ports.USUAL},
    }
    return Site(**{**values, **changes})


@functools.cache
def stack() -> Stack:
    """The session's stack."""
    made = Stack(site(), lambda line: None)
    atexit.register(shutil.rmtree, home(), ignore_errors=True)
    atexit.register(made.down)  # Runs first.
    return made


@functools.cache
def ray() -> str:
    """Jobs URL of a Ray head; `token()` opens it."""
    return str(stack().up(["ray"], pin=True).services["ray"]["url"])


def token() -> str:
    """What the Ray head asks for."""
    return site().ray_token.read_text()
