"""What a person at a terminal sees when something is refused: one message, exit code 2, and nothing was started."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import flows.curate
from components.cluster import REPOSITORY
from components.errors import Failure, JobFailed, NoSpaceError, ServiceError
from tasks import launch, terminal
from tasks.launch import main
from tasks.stack.services import Service
from tasks.stack.supervisor import Stack
from tests.disks import small_disk

CONFIG = f"--config={REPOSITORY / 'configs' / 'miniature.yaml'}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PREFECT_API_URL", "LONGSHELL_RAY_JOBS", "LONGSHELL_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def refused(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `python -m flows.curate` in this process; gives its message."""

    def run(*arguments: str) -> str:
        assert main(flows.curate.curate, [CONFIG, *arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert "Traceback" not in output.err
        assert not (home / "stack" / "state.json").exists(), "nothing was started"
        return output.err.strip()

    return run


def test_an_unknown_key_is_refused(refused: Callable[..., str]) -> None:
    assert refused("rl.leg=2").splitlines()[-1] == "  - rl.leg: unknown key"


def test_a_missing_model_is_refused(refused: Callable[..., str]) -> None:
    assert "model.path: there is no folder /no/such" in refused("model.path=/no/such", "base=null")


def test_a_port_that_is_no_port_is_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHELL_PREFECT_PORT", "x")
    assert "LONGSHELL_PREFECT_PORT: 'x' is not a port number" in refused()


def test_an_mlflow_of_no_known_kind_is_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "bogus://u:hunter2@x")
    message = refused()
    assert "MLFLOW_TRACKING_URI is none of" in message
    assert "hunter2" not in message


def test_an_occupied_port_is_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setenv("LONGSHELL_RAY_PORT", str(port))
        assert f"LONGSHELL_RAY_PORT: port {port} is occupied; choose another or leave it unset" in refused()


def test_a_state_directory_that_cannot_be_made_is_refused(refused: Callable[..., str], home: Path) -> None:
    home.write_text("a file")
    message = refused()
    assert str(home) in message
    assert "set LONGSHELL_HOME to a folder that can" in message


@pytest.mark.parametrize("leave", [0, 100_000, 900_000], ids=["full", "nearly full", "too small"])
def test_a_disk_without_room_is_refused_before_anything_is_written(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        monkeypatch.setenv("LONGSHELL_HOME", str(disk.folder / "home"))
        disk.fill(leave=leave)
        [message] = refused().splitlines()
        assert str(disk.folder) in message
        assert message.endswith("the same command then continues")
        written = [path.name for path in disk.folder.rglob("*") if path.is_file() and path.stat().st_size]
        assert written in ([], ["filler"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_while_services_start_leaves_none_of_them(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    # A newcomer's `timeout 90 python -m flows.campaign` ended without a word, and its Ray head went on.
    before = signal.signal(number, signal.SIG_DFL)  # Under `nohup` it would be ignored.
    started: list[psutil.Process] = []

    def ready() -> bool:
        record = json.loads((home / "stack" / "state.json").read_text())
        started.append(psutil.Process(record["services"]["prefect"]["pid"]))
        os.kill(os.getpid(), number)
        return False

    sleeping = Service("prefect", ("sleep", "600"), "http://127.0.0.1:1", ready)
    monkeypatch.setattr(launch, "Stack", partial(Stack, builders={"prefect": lambda site: sleeping}))
    assert main(flows.curate.curate, [CONFIG]) == terminal.EXIT_INTERRUPTED
    assert capsys.readouterr().err.endswith("interrupted\n")
    assert [one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in started] == [False]
    assert not (home / "stack" / "state.json").exists()
    assert signal.signal(number, before) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("meets", "told"),
    [
        (None, "the Ray jobs of this run are stopped"),
        (ServiceError("Ray job x did not stop"), "the Ray jobs of this run may still run (Ray job x did not stop)"),
    ],
)
def test_an_interrupt_says_what_became_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, meets: Exception | None, told: str
) -> None:
    def stop(flow_run: str) -> list[str]:
        if meets is not None:
            raise meets
        return [flow_run]

    monkeypatch.setattr(launch, "stop_followed", stop)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    interrupts = launch._Interrupts()
    assert interrupts.outcome() is None
    interrupts.arm(None, SimpleNamespace(id="run"), None)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert interrupts.outcome() == told


def test_only_a_fault_of_the_program_comes_with_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def told(error: Exception) -> tuple[int, str]:
        code = terminal.tell(error)
        return code, capsys.readouterr().err.strip()

    code, text = told(NoSpaceError("/data: x"))
    assert (code, len(text.splitlines())) == (2, 1)
    job = JobFailed("m-s1-rl-1", "FAILED with exit code 1", "ERROR x\nERROR KeyError: 'y'", Failure.PROGRAM)
    assert told(job) == (1, "Ray job m-s1-rl-1 ended FAILED with exit code 1: KeyError: 'y'")
    job = JobFailed("m-s1-rl-1", "STOPPED", "INFO step 3", Failure.STOPPED)
    assert "m-s1-rl-1 was stopped: by a person, or with another run that followed it" in told(job)[1]
    assert told(ServiceError("Ray is away")) == (1, "Ray is away\nWhat is done is kept: the same command continues")
    code, text = told(KeyError("bug"))
    assert code == 1
    assert text.endswith("KeyError: 'bug'")


def test_prefects_own_reports_of_failures_stay_off_the_terminal() -> None:
    record = logging.LogRecord("prefect.flow_runs", logging.ERROR, "/x/flow_engine.py", 1, "%s", None, None)
    shown = []
    for module, text in (
        ("flow_engine", "Encountered exception during execution: JobFailed()"),
        ("task_engine", "Task run failed with exception: JobFailed() - Retry 1/3 will start 2 second(s) from now"),
        ("task_engine", 'Finished in state Failed("…")'),
        ("task_engine", "Finished in state Completed()"),
        ("drive", "Task run failed, says a job"),
    ):
        record.module, record.args = module, (text,)
        if terminal._is_no_report(record):
            shown.append(text)
    assert shown == ["Finished in state Completed()", "Task run failed, says a job"]
