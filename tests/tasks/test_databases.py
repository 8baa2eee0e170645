"""Servers and databases that are given: addresses from the environment, passwords nowhere, and a real PostgreSQL."""

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
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

import flows.campaign
from components.cluster import REPOSITORY
from components.databases import unreachable
from components.errors import ConfigError
from components.naming import anonymous, hidden, shown
from components.tracking import Run
from tasks import tracking
from tasks.given import away
from tasks.launch import main
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


WORDS = st.text("abcXYZ0129.:/@?&=#% '", min_size=4, max_size=12).filter(lambda word: len(word.strip()) > 3)


@given(password=WORDS)
@limits(max_examples=40)
def test_a_text_that_quotes_an_address_is_told_without_its_password(password: str) -> None:
    address = f"postgresql://longshell:{password}@db.internal/mlflow"
    text = hidden(f'FATAL of {address}: user "longshell", password {password!r}; mlflow db upgrade {address}/', address)
    told = text.replace("***", "").replace("postgresql://", "").replace("@db.internal/mlflow", "")
    assert password not in told
    assert "FATAL" in told
    assert ('user "longshell"' in text) == ("?" not in password), "where more could be the password, more is hidden"


def test_a_link_leads_where_the_address_does_and_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert anonymous("https://ops:hunter2@mlflow:5000") == ("https://mlflow:5000", "ops:hunter2")
    assert anonymous("http://mlflow:5000") == ("http://mlflow:5000", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ops:hunter2@mlflow:5000")
    run = Run("r", "1", "k")
    links = (tracking.link(run), tracking.file_link(run, "report.html"), tracking.trace_link(run, "t"))
    assert all(link.startswith("https://mlflow:5000/#/experiments/1/") for link in links)


AWAY = "postgresql://longshell:hunter2@127.0.0.1:1/x"


def test_a_database_that_does_not_answer_refuses_the_start_in_one_message_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PREFECT_API_URL", "LONGSHELL_RAY_JOBS", "LONGSHELL_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    for name in ("LONGSHELL_PREFECT_DATABASE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, AWAY)
    config = f"--config={REPOSITORY / 'configs' / 'miniature.yaml'}"
    assert main(flows.campaign.campaign, [config], reports=True) == 1
    told = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI: postgresql+psycopg2://***@127.0.0.1:1/x cannot be used: connection to server" in told
    assert "LONGSHELL_PREFECT_DATABASE: postgresql+asyncpg://***@127.0.0.1:1/x cannot be used: " in told
    assert "correct its address" in told
    assert main(flows.campaign.campaign, [config, "--dry-run"], reports=True) == 0
    planned = capsys.readouterr()
    assert "A start from here would be refused. this machine: 2 problems" in planned.err
    for text in (told, planned.out, planned.err):
        assert "hunter2" not in text
        assert "Traceback" not in text
    assert not (tmp_path / "home" / "stack" / "state.json").exists(), "nothing was started"


def test_a_server_that_does_not_answer_is_named_by_its_variable_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LONGSHELL_STORE", raising=False)
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    given = {"PREFECT_API_URL": "http://u:hunter2@127.0.0.1:1/api", "LONGSHELL_RAY_JOBS": "http://127.0.0.1:1"}
    given["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:1"
    for name, address in given.items():
        monkeypatch.setenv(name, address)
    assert main(flows.campaign.campaign, [f"--config={REPOSITORY / 'configs' / 'miniature.yaml'}"], reports=True) == 1
    told = capsys.readouterr().err
    assert [line.partition(":")[0] for line in told.splitlines() if "cannot be used: " in line] == list(given)
    assert "PREFECT_API_URL: http://***@127.0.0.1:1/api cannot be used: " in told
    assert "correct its address" in told
    assert "hunter2" not in told
    assert not (tmp_path / "home" / "stack" / "state.json").exists(), "nothing was started"


def test_addresses_that_no_driver_understands_are_told_in_words_without_a_password() -> None:
    for address in ("postgresql+psycopg2://u:hunter2@h:port/x", "postgresql+asyncpg://u:p@hunter2@127.0.0.1:1/x"):
        reason = unreachable(address)
        assert reason
        assert "hunter2" not in reason
    assert "sslmode" in str(unreachable("postgresql+asyncpg://u:hunter2@127.0.0.1:1/x?sslmode=require"))
    assert unreachable("sqlite:////nowhere/x.db") is None
    assert unreachable("http://127.0.0.1:1") is None


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


@pytest.mark.timeout(600)
def test_a_flow_that_has_run_is_in_a_real_postgresql(postgres: Server, site: Site, stack: Stack) -> None:
    server = str(stack.up(["prefect"], pin=True).services["prefect"]["url"])
    with temporary_settings({PREFECT_API_URL: server}):
        assert flow(lambda: 42, name="answering")() == 42
    database = str(site.prefect_database).rpartition("/")[2]
    assert postgres.ask(database, "SELECT count(*) FROM alembic_version") == [(1,)], "migrated"
    flows = "SELECT f.name, r.state_name FROM flow_run r JOIN flow f ON f.id = r.flow_id"
    assert postgres.ask(database, flows) == [("answering", "Completed")]


@pytest.mark.nightly
@pytest.mark.timeout(800)
def test_prefect_and_mlflow_live_on_a_real_postgresql(postgres: Server, site: Site, stack: Stack) -> None:
    assert away(site) == []
    wrong = {"LONGSHELL_PREFECT_DATABASE": site.prefect_database, "MLFLOW_TRACKING_URI": site.tracking_uri}
    wrong = {
        name: f"postgresql://{str(uri).partition('://')[2]}".replace(PASSWORD, "hunter2") for name, uri in wrong.items()
    }
    told = away(Site.current({"LONGSHELL_HOME": str(site.home), **wrong}))
    assert [each.partition(":")[0] for each in told] == ["MLFLOW_TRACKING_URI", "LONGSHELL_PREFECT_DATABASE"]
    assert all("password authentication failed" in each and "hunter2" not in each for each in told)

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
