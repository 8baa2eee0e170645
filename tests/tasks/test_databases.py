"""Prefect and MLflow on PostgreSQL: addresses from the environment, passwords seen nowhere, and the real thing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from components.cluster import REPOSITORY
from components.errors import ConfigError
from components.naming import shown
from tasks.site import Site
from tasks.stack import ports, services, settings
from tasks.stack.supervisor import Stack
from tests.postgres import PASSWORD, Server, postgres

__all__ = ["postgres"]
FLOW = """
from prefect import flow, task

@task
def double(number: int) -> int:
    return 2 * number

@flow(name="doubling")
def doubling() -> int:
    return double(21)

assert doubling() == 42
"""


def test_addresses_are_given_to_each_with_the_driver_that_it_has() -> None:
    given = {"LONGSHELL_PREFECT_DATABASE": "postgresql://u:p@h/x", "MLFLOW_TRACKING_URI": "postgresql://u:p@h/y"}
    site = Site.current({"LONGSHELL_HOME": "/h", **given})
    assert site.prefect_database == "postgresql+asyncpg://u:p@h/x"
    assert site.tracking_uri == "postgresql+psycopg2://u:p@h/y"
    served = services.prefect(site)
    assert served.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] == site.prefect_database
    default = Site.current({"LONGSHELL_HOME": "/h"})
    assert default.prefect_database is None
    assert "PREFECT_SERVER_DATABASE_CONNECTION_URL" not in services.prefect(default).environment


def test_a_database_of_another_kind_is_refused_without_its_password() -> None:
    for address in ("mysql://u:secret@h/x", "longshell:secret@db.internal:5432/prefect"):
        with pytest.raises(ConfigError, match="LONGSHELL_PREFECT_DATABASE") as caught:
            Site.current({"LONGSHELL_PREFECT_DATABASE": address, "LONGSHELL_RAY_PORT": "x"})
        assert "secret" not in str(caught.value)
        assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "address",
    [
        "longshell:secret@db.internal/x",
        "postgresql://u:p/secret@h/x",
        "postgresql://u:p#secret@h/x",
        "postgresql://u:p@secret@h/x",
        "postgresql://u:p?secret@h/x",
        "postgresql://h/x?user=u&password=secret",
        "postgresql://h/x?user=u&password=p@secret",
        "postgresql://h/x?user=u&password=p://secret",
        "longshell:p://secret@h/x",
    ],
)
def test_a_password_is_not_shown_wherever_it_stands(address: str) -> None:
    assert not {"p", "secret"} & set(re.split(r"\W", shown(address)))


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("postgresql+asyncpg://u:p%40ss@h:5432/x?host=/s", "postgresql+asyncpg://***@h:5432/x?***"),
        ("postgresql://h/x", "postgresql://h/x"),
        ("sqlite:////var/x.db", "sqlite:////var/x.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, seen: str) -> None:
    assert shown(address) == seen


@pytest.fixture
def site(postgres: Server) -> Iterator[Site]:
    home = Path(tempfile.mkdtemp(prefix="lsd-"))
    prefect, mlflow = (postgres.create(f"{name}_{home.name[4:].lower()}") for name in ("prefect", "mlflow"))
    environment = {"LONGSHELL_HOME": str(home), "LONGSHELL_PREFECT_DATABASE": prefect, "MLFLOW_TRACKING_URI": mlflow}
    made = Site.current(environment | {f"LONGSHELL_{name.upper()}_PORT": str(ports.any_free()) for name in ports.USUAL})
    yield made
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def stack(site: Site) -> Iterator[Stack]:
    made = Stack(site, lambda line: None)
    yield made
    made.down()


def run_flow(site: Site) -> None:
    environment = {**os.environ, **settings.environment(site)}
    done = subprocess.run(
        [sys.executable, "-c", FLOW], env=environment, cwd=REPOSITORY, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(800)
def test_prefect_and_mlflow_live_on_a_real_postgresql(postgres: Server, site: Site, stack: Stack) -> None:
    record = stack.up(["prefect", "mlflow"], pin=True)
    prefect, mlflow = (str(uri).rpartition("/")[2] for uri in (site.prefect_database, site.tracking_uri))
    assert postgres.ask(prefect, "SELECT count(*) FROM alembic_version") == [(1,)], "migrated"
    run_flow(site)
    flows = "SELECT f.name, r.state_name FROM flow_run r JOIN flow f ON f.id = r.flow_id"
    assert postgres.ask(prefect, flows) == [("doubling", "Completed")]
    assert postgres.ask(prefect, "SELECT state_name FROM task_run") == [("Completed",)]

    os.kill(record.services["prefect"]["pid"], signal.SIGKILL)
    psutil.wait_procs([psutil.Process(record.services["prefect"]["pid"])], timeout=10)
    stack.up(["prefect", "mlflow"], pin=True)
    run_flow(site)
    assert postgres.ask(prefect, flows) == [("doubling", "Completed")] * 2, "nothing was lost with the server"

    script = (
        "import sys, pathlib; from components.tracking import Tracker\n"
        "tracker = Tracker(sys.argv[1], pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None)\n"
        "run = tracker.stage(tracker.campaign('p-s1', {'a': 1}, {}), 'rl', {})\n"
        "print(tracker.log_step(run, 7, {'rollout/reward_mean': 0.5}, 1_700_000_000_000))\n"
    )
    asked = [sys.executable, "-c", script]
    written = []
    for uri in ([site.tracking_uri, str(site.home / "files")], [record.services["mlflow"]["url"]]):
        done = subprocess.run([*asked, *uri], cwd=REPOSITORY, text=True, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr
        written.append(done.stdout.strip())
    assert written == ["True", "False"], "once, directly; the server sees it in the same database"
    metrics = "SELECT value FROM metrics WHERE key = 'rollout/reward_mean' AND step = 7"
    assert postgres.ask(mlflow, metrics) == [(0.5,)]

    for row in stack.up(["prefect", "mlflow"], pin=True).services.values():
        family = psutil.Process(row["pid"])
        for process in (family, *family.children(recursive=True)):
            assert PASSWORD not in " ".join(process.cmdline())
    for file in [path for path in (site.home / "stack").rglob("*") if path.is_file()]:
        assert PASSWORD not in file.read_text(errors="replace"), file
