"""Real services for tests, each started at most once a session and stopped when pytest ends."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from components.tracking import Tracker
from tasks.site import Site
from tasks.stack import ports, settings
from tasks.stack.provision import provision
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


@functools.cache
def ui() -> Mapping[str, str]:
    """What `make ui` starts, without MLflow's server and with fake stages; gives what a terminal beside it exports."""
    stack().up(["prefect", "ray"], pin=True)
    values = settings.environment(site())
    with temporary_settings({PREFECT_API_URL: values["PREFECT_API_URL"]}):
        provision(values)
    Tracker(site().tracking_uri, home() / "mlflow" / "artifacts")  # Makes the database, as the server would.
    worker()
    return {**os.environ, **values}


def worker() -> int:
    """The pid of a worker; a new one when the last was killed."""
    with pytest.MonkeyPatch.context() as patch:  # The worker inherits it, and flows the worker's.
        patch.setenv("MLFLOW_TRACKING_URI", site().tracking_uri)
        return int(stack().up(["worker"], pin=True).services["worker"]["pid"])
