"""Real services for tests, each started at most once a session and stopped when pytest ends."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from components.cluster import REPOSITORY
from tasks.site import Site
from tasks.stack import ports, settings
from tasks.stack.provision import provision
from tasks.stack.services import ray_directory
from tasks.stack.supervisor import Stack

beside = ThreadPoolExecutor(1, "services")
"""What takes long and is needed later is begun here: most tests leave one core idle."""


@functools.cache
def home() -> Path:
    """A state directory of the session, with a path short enough for Ray's sockets."""
    made = Path(tempfile.mkdtemp(prefix="lst-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


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
    atexit.register(made.down)  # Runs before the folder is removed.
    return made


@functools.cache
def ray() -> str:
    """Jobs URL of a Ray head; `token()` opens it. It has two GPUs that do not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 2}')
        return str(stack().up(["ray"], pin=True).services["ray"]["url"])


def gcs(within_s: float = 30.0) -> str:
    """Where a driver that is no job, or a second node, joins the Ray head; `token()` opens it.

    Spelled so that Ray, which takes 127.0.0.1 for the machine's own address, finds the head where it listens.
    """
    ray()
    told, deadline = ray_directory(home()) / "ray_current_cluster", time.monotonic() + within_s
    while not told.exists():  # written by the head after its node answers
        assert time.monotonic() < deadline, f"{told} is missing"
        time.sleep(0.05)
    return f"[::ffff:127.0.0.1]:{told.read_text().rpartition(':')[2]}"


def token() -> str:
    """What the Ray head asks for."""
    return site().ray_token.read_text()


def database(at: Path) -> str:
    """URI of a new MLflow database, a copy of the session's empty one: making one takes seconds."""
    at.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_empty_database(), at)
    return f"sqlite:///{at}"


@functools.cache
def _empty_database() -> Path:
    made, files = home() / "mlflow" / "empty.db", home() / "mlflow" / "artifacts"
    uri = f"sqlite:///{made}"
    script = f"import pathlib; from components.tracking import Tracker; Tracker({uri!r}, pathlib.Path({str(files)!r}))"
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)
    return made


def ui() -> Mapping[str, str]:
    """What `make ui` starts, without MLflow's server and with fake stages; gives what a terminal beside it exports."""
    return begin_ui().result()


@functools.cache
def begin_ui() -> Future[Mapping[str, str]]:
    """Starts it beside whatever the caller does next."""
    stack()
    return beside.submit(_start_ui)


def worker() -> int:
    """The pid of a worker; a new one when the last was killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)  # Flows use the database in the worker's home then.
        return int(stack().up(["worker"], pin=True).services["worker"]["pid"])


def _start_ui() -> Mapping[str, str]:
    stack().up(["prefect", "ray"], pin=True)
    values = settings.environment(site())
    with temporary_settings({PREFECT_API_URL: values["PREFECT_API_URL"]}):
        provision(values)
    database(home() / "mlflow" / "mlflow.db")  # As the server would.
    worker()
    return {**os.environ, **values}
