"""The supervisor starts what is missing, and stops exactly what it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

import tasks.stack.__main__ as stack_command
import tests.services as session
from components.cluster import REPOSITORY
from components.errors import ConfigError, ServiceError
from tasks.site import Site
from tasks.stack import ports, provision, services, settings
from tasks.stack.process import Identity
from tasks.stack.services import Service, answers
from tasks.stack.settings import WORK_POOL
from tasks.stack.supervisor import Stack
from tests.answering import answering

SERVER = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
FLAKY = "import pathlib, sys; flag = pathlib.Path(sys.argv[2]); flag.exists() or sys.exit(flag.touch());" + SERVER
WITH_CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True);" + SERVER


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "home", str(tmp_path / "store"), "sqlite:///x", "tests.fake_jobs")


def serving(name: str, script: str, starts: int = 1) -> Callable[[Site], Service]:
    """Builds a service that is a script with a port and a file of its own."""

    def build(site: Site) -> Service:
        port = ports.any_free()
        url = f"http://127.0.0.1:{port}"
        argv = (sys.executable, "-c", script, str(port), str(site.home / "flag"))
        return Service(name, argv, url, lambda: answers(url), deadline_s=15, starts=starts)

    return build


@pytest.fixture
def stack(site: Site) -> Iterator[Stack]:
    builders = {
        "one": serving("one", SERVER),
        "family": serving("family", WITH_CHILD),
        "flaky": serving("flaky", FLAKY, starts=2),
        "broken": serving("broken", "raise SystemExit('no such table')"),
    }
    made = Stack(site, lambda line: None, builders)
    yield made
    made.down()


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_up_starts_what_is_missing_and_down_stops_exactly_that(stack: Stack) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SERVER, str(ports.any_free())], stderr=subprocess.DEVNULL)
    try:
        first = stack.up(["one"], pin=True)
        both = stack.up(["one", "family"], pin=True)
        assert both.services["one"] == first.services["one"]
        assert all(answers(row["url"]) for row in both.services.values())
        child = psutil.Process(both.services["family"]["pid"]).children()[0].pid
        assert sorted(stack.down()) == ["family", "one"]
        assert not any(runs(pid) for pid in (child, *(row["pid"] for row in both.services.values())))
        assert bystander.poll() is None
        assert stack.down() == []
    finally:
        bystander.kill()
        bystander.wait()


def test_children_of_a_service_that_was_killed_are_found_by_their_mark(stack: Stack) -> None:
    pid = stack.up(["family"], pin=True).services["family"]["pid"]
    child = psutil.Process(pid).children()[0].pid
    os.kill(pid, signal.SIGKILL)
    stack.down()
    assert not runs(child)


def test_a_reused_pid_is_not_taken_for_the_service(stack: Stack, site: Site) -> None:
    stack.up(["one"], pin=True)
    record = json.loads(site.stack_file.read_text())
    pid = record["services"]["one"]["pid"]
    bystander = subprocess.Popen(["sleep", "60"])
    record["services"]["one"]["pid"] = bystander.pid
    record["mark"] = "another"
    site.stack_file.write_text(json.dumps(record))
    try:
        assert stack.running() == []
        stack.down()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        os.kill(pid, signal.SIGKILL)


def test_a_service_that_was_killed_is_started_again_and_the_others_stay(stack: Stack) -> None:
    before = stack.up(["one", "family"], pin=True)
    os.kill(before.services["one"]["pid"], signal.SIGKILL)
    while runs(before.services["one"]["pid"]):
        time.sleep(0.01)
    after = stack.up(["one", "family"], pin=True)
    assert after.services["family"] == before.services["family"]
    assert after.services["one"]["pid"] != before.services["one"]["pid"]


def test_a_service_that_ends_while_starting_is_started_again_where_that_is_known_to_help(stack: Stack) -> None:
    record = stack.up(["one", "flaky"], pin=True)
    assert sorted(stack.running()) == ["flaky", "one"]
    assert answers(record.services["flaky"]["url"])


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(stack: Stack, site: Site) -> None:
    with pytest.raises(ServiceError, match=r"(?s)broken ended while starting.*no such table"):
        stack.up(["one", "broken"], pin=True)
    assert stack.running() == []
    assert not site.stack_file.exists()
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in alive if SERVER in child.cmdline()]


def test_the_last_user_of_a_session_stops_the_stack_and_dead_users_do_not_count(stack: Stack, site: Site) -> None:
    dead = subprocess.Popen(["true"])
    gone = Identity.of(dead.pid)
    dead.wait()
    (site.stack_file.parent / "users" / f"{gone.pid}.json").write_text(json.dumps({"pid": gone.pid, "started": 1.0}))
    other = subprocess.Popen(["sleep", "60"])
    lease = site.stack_file.parent / "users" / f"{other.pid}.json"
    lease.write_text(json.dumps({"pid": other.pid, "started": Identity.of(other.pid).started}))
    with stack.session(["one"]):
        assert stack.running() == ["one"]
        assert set(stack.users()) == {os.getpid(), other.pid}
    assert stack.running() == ["one"], "another process still uses it"
    other.kill()
    other.wait()
    with stack.session(["one"]):
        pass
    assert stack.running() == []


def test_a_session_leaves_a_pinned_stack_running(stack: Stack) -> None:
    stack.up(["one"], pin=True)
    with stack.session(["one"]):
        pass
    assert stack.running() == ["one"]


def test_an_occupied_port_that_was_asked_for_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        site = Site.current({"LONGSHELL_HOME": str(tmp_path), "LONGSHELL_RAY_PORT": str(port)})
        with pytest.raises(ConfigError, match=f"LONGSHELL_RAY_PORT: port {port} is occupied"):
            Stack(site, lambda line: None).up(["prefect", "ray"], pin=True)
    assert not site.stack_file.exists()


def test_a_service_gets_the_port_that_it_had_before_its_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where 4200 was taken, a Prefect that was started again had another address than its flow runs knew.
    monkeypatch.setattr(ports, "is_free", lambda port: port in (4200, 41_000, 42_000))
    assert ports.choose("prefect", None, "http://127.0.0.1:41000/api") == 41_000
    assert ports.choose("prefect", None, "http://127.0.0.1:41001/api") == 4200
    assert ports.choose("prefect", 42_000, "http://127.0.0.1:41000/api") == 42_000
    assert ports.choose("prefect", None) == 4200


def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"state directory .*file/home.*\n.*set LONGSHELL_HOME"):
        Stack(Site.current({"LONGSHELL_HOME": str(tmp_path / "file/home")}), lambda line: None)


def test_rays_directory_is_short_enough_for_sockets_wherever_the_state_is() -> None:
    assert services.ray_directory(Path("/srv/var")) == Path("/srv/var/ray")
    deep = Path("/a/very/long/way/down/to/where/the/state/of/this/installation/is/kept")
    assert len(str(services.ray_directory(deep))) <= 40
    assert services.ray_directory(deep) != services.ray_directory(deep / "x")


def test_a_user_who_waits_for_the_lock_finds_the_services_of_the_first(stack: Stack, site: Site) -> None:
    stack.up(["one"], pin=True)
    again = Stack(site, lambda line: None).up(["one"], pin=False)
    assert again.services == stack.up(["one"], pin=True).services


def test_services_that_are_given_are_used_by_up_and_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with answering() as prefect, answering() as mlflow:
        given = {"PREFECT_API_URL": f"{prefect}/api", "MLFLOW_TRACKING_URI": mlflow}
        site = Site.current({"LONGSHELL_HOME": str(tmp_path), **given})
        up_with_what_is_given(site, monkeypatch)
    shown = capfd.readouterr().out
    assert f"Prefect  {prefect}\n" in shown
    assert f"MLflow   {mlflow}\n" in shown


def up_with_what_is_given(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    builders = {name: serving(name, SERVER) for name in services.BUILDERS}
    monkeypatch.setattr(stack_command, "Stack", partial(Stack, builders=builders))
    monkeypatch.setattr(provision, "provision", lambda values: told.append(values["PREFECT_API_URL"]))
    monkeypatch.setattr(settings, "apply", lambda values: None)
    monkeypatch.setattr(Site, "current", lambda: site)
    monkeypatch.setattr(sys, "argv", ["tasks.stack", "up"])
    try:
        assert stack_command.main() == 0
        assert sorted(Stack(site, print).running()) == ["ray", "worker"]
    finally:
        Stack(site, print).down()
    assert told == [site.given["prefect"]]


def test_who_gives_a_ray_says_how_it_is_opened(tmp_path: Path) -> None:
    ours = Site.current({"LONGSHELL_HOME": str(tmp_path)})
    assert settings.environment(ours)["RAY_AUTH_TOKEN_PATH"] == str(ours.ray_token)
    given = Site.current({"LONGSHELL_HOME": str(tmp_path), "LONGSHELL_RAY_JOBS": "http://ray:8265"})
    assert not [name for name in settings.environment(given) if name.startswith("RAY_AUTH")]


def test_a_database_of_mlflow_is_no_server_that_is_given() -> None:
    assert "mlflow" not in Site.current({"MLFLOW_TRACKING_URI": "sqlite:////x/y.db"}).given
    assert Site.current({"MLFLOW_TRACKING_URI": "https://mlflow.example"}).given == {"mlflow": "https://mlflow.example"}


def test_a_worker_of_a_server_elsewhere_wants_to_know_where_everything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    for name in ("PREFECT_API_URL", "LONGSHELL_RAY_JOBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["tasks.stack", "worker"])
    assert stack_command.main() == 2
    told = capfd.readouterr().err
    assert "PREFECT_API_URL is not set" in told
    assert "LONGSHELL_RAY_JOBS is not set" in told
    assert not (tmp_path / "home").exists()


@pytest.mark.nightly  # a container's command as it stands: Prefect's server, every deployment, a worker
@pytest.mark.timeout(580)
def test_a_worker_of_a_server_elsewhere_tells_it_of_everything_and_becomes_the_worker(tmp_path: Path) -> None:
    server = str(session.stack().up(["prefect"], pin=True).services["prefect"]["url"])
    given = {"PREFECT_API_URL": server, "LONGSHELL_RAY_JOBS": "http://ray:8265"}
    environment = {**os.environ, **given, "LONGSHELL_HOME": str(tmp_path / "home")}

    def workers() -> set[str]:
        listed = services.fetch(f"{server}/work_pools/{WORK_POOL}/workers/filter", data=b"{}")
        return {worker["name"] for worker in json.loads(listed or b"[]")}

    before = workers()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.stack", "worker"], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 300
        while workers() <= before:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.5)
        assert "prefect" in psutil.Process(process.pid).cmdline()[1]
        deployed = services.fetch(f"{server}/deployments/filter", data=b"{}")
        assert {"campaign", "rl", "diagnose"} <= {one["name"] for one in json.loads(deployed or b"[]")}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
