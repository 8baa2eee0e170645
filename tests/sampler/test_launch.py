"""The embedded server as a child: it starts, fails with a reason, and never outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from components.config import SamplerConfig
from components.errors import ServiceError
from components.sampler import SamplerServer, launch_sampler
from tests.sampler.conftest import CONTEXT

CONFIG = SamplerConfig(slots=2, context_tokens=CONTEXT)


def launch(folder: Path, tmp_path: Path, config: SamplerConfig = CONFIG, port: int = 0) -> SamplerServer:
    return launch_sampler(config, folder, seed=0, routing=True, log_path=tmp_path / "logs" / "sampler.log", port=port)


def ended(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_a_missing_folder_and_an_occupied_port_are_named(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"exit code 2.*\n.*model folder /nowhere does not exist"):
        launch(Path("/nowhere"), tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"cannot listen on 127\.0\.0\.1:{port}.*in use") as raised:
            launch(model_folder, tmp_path, port=port)
    assert "/nowhere" not in str(raised.value), "only the lines of this start are shown"


def test_a_server_that_is_not_ready_in_time_is_ended(model_folder: Path, tmp_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(ServiceError, match=r"was not ready within 0\.01 s"):
        launch(model_folder, tmp_path, SamplerConfig(start_timeout_s=0.01))
    assert psutil.Process().children() == before


def test_the_server_outlives_the_thread_that_started_it_and_ends_with_close(model_folder: Path, tmp_path: Path) -> None:
    started: list[SamplerServer] = []
    thread = threading.Thread(target=lambda: started.append(launch(model_folder, tmp_path)))
    thread.start()
    thread.join()
    (server,) = started
    time.sleep(0.3)
    assert server.alive
    server.close()
    assert not server.alive
    server.close()


PARENT = """
import json, os, sys, time
from pathlib import Path
from components.config import SamplerConfig
from components.sampler import launch_sampler
server = launch_sampler(SamplerConfig(slots=2, context_tokens=64), Path(sys.argv[1]), seed=0, routing=True,
                        log_path=Path(sys.argv[2]))
if os.fork() == 0:  # an unrelated child that inherits the lifeline's other end
    time.sleep(20)
    os._exit(0)
print(json.dumps(server.pid), flush=True)
time.sleep(60)
"""


def test_a_killed_parent_takes_the_server_with_it(model_folder: Path, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(model_folder), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert parent.stdout is not None
    pid = json.loads(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    group = [child.pid for child in psutil.Process(parent.pid).children() if child.pid != pid]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    try:
        assert ended(pid, within_s=5.0)
    finally:
        for leftover in group:
            os.kill(leftover, signal.SIGKILL)
        parent.stdout.close()
