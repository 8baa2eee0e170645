"""Servers as children: they start, fail with a reason, and never outlive their parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from components.config import SamplerConfig
from components.errors import ServiceError
from components.sampler import SamplerServer, launch_sampler
from tests.sampler import fake
from tests.sampler.conftest import CONTEXT
from tests.sampler.fake import ended

CONFIG = SamplerConfig(slots=2, context_tokens=CONTEXT)


def launch(folder: Path, tmp_path: Path, config: SamplerConfig = CONFIG, port: int = 0) -> SamplerServer:
    return launch_sampler(config, folder, seed=0, routing=True, log_path=tmp_path / "logs" / "sampler.log", port=port)


@pytest.mark.nightly
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


PARENT = """
import json, os, sys, threading, time
from pathlib import Path
from components.config import SamplerConfig
from components.sampler import launch_sampler
started = []
def launch():
    config = SamplerConfig(slots=2, context_tokens=64)
    started.append(launch_sampler(config, Path(sys.argv[1]), seed=0, routing=True, log_path=Path(sys.argv[2])))
thread = threading.Thread(target=launch)
thread.start()
thread.join()
(server,) = started
time.sleep(0.3)
assert server.alive, "it outlives the thread that started it"
if os.fork() == 0:  # an unrelated child that inherits the lifeline's other end
    time.sleep(300)
    os._exit(0)
print(json.dumps(server.pid), flush=True)
time.sleep(300)
"""


def test_the_server_outlives_the_thread_that_started_it_and_a_killed_parent_takes_it_along(
    model_folder: Path, tmp_path: Path
) -> None:
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
        assert ended(pid, within_s=60)
    finally:
        for leftover in group:
            os.kill(leftover, signal.SIGKILL)
        parent.stdout.close()


def launch_fake(tmp_path: Path, **environment: str) -> SamplerServer:
    settings = fake.settings(tmp_path, tp=2, **environment)
    config = SamplerConfig(engine="sglang", sglang=settings, context_tokens=512, start_timeout_s=120)
    log = tmp_path / "logs" / "sglang.log"
    return launch_sampler(config, Path("/models/m"), seed=3, routing=True, log_path=log, weight_version=7)


def started(tmp_path: Path) -> dict[str, Any]:
    (found,) = fake.started(tmp_path)
    return found


def test_sglang_is_started_with_what_the_client_relies_on_and_ends_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # of the machine, and not for its own servers
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with launch_fake(tmp_path) as server:
        fake = started(tmp_path)
        assert server.alive
        assert all(psutil.pid_exists(pid) for pid in fake["pids"])
    assert all(ended(pid, within_s=60) for pid in fake["pids"])
    assert not server.alive
    server.close()
    text = " ".join(fake["arguments"])
    assert text.startswith("-m sglang.launch_server --model-path /models/m --host 127.0.0.1 --port ")
    pairs = "--tp-size 2", "--context-length 512", "--weight-version 7", "--random-seed 3", "--sampling-defaults openai"
    assert all(pair in text for pair in pairs)
    assert "--enable-return-routed-experts" in fake["arguments"]
    assert fake["arguments"][-2:] == ["--log-level", "info"]


def test_an_sglang_that_does_not_start_shows_the_end_of_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"SGLang for /models/m: ended with exit code 1.*\n.*no such model"):
        launch_fake(tmp_path, FAKE_END="1")
    assert all(ended(pid, within_s=60) for pid in started(tmp_path)["pids"])


def test_a_killed_guardian_takes_sglang_with_it(tmp_path: Path) -> None:
    server = launch_fake(tmp_path)
    main, child = started(tmp_path)["pids"]
    os.kill(server.pid, signal.SIGKILL)
    assert ended(main, within_s=60)
    deadline = time.monotonic() + 60  # It is gone a moment after what dies with it, with the last of its threads.
    while server.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)  # SGLang's own children watch it; this one does not
    server.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_how_sglang_was_killed_is_how_its_guardian_ends(tmp_path: Path, number: signal.Signals) -> None:
    with launch_fake(tmp_path) as server:
        main, child = started(tmp_path)["pids"]
        os.kill(main, number)
        deadline = time.monotonic() + 60
        while server.alive:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert server.exit_code == -number
        assert ended(child, within_s=60)
