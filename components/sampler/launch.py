"""Starting a sampler as a child process: the embedded server, or SGLang.

Invariant: the child never outlives its parent, and a child that does not become ready raises one `ServiceError` with
the last lines of its log. A restarted server keeps its URL.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from components.config import SamplerConfig
from components.errors import ServiceError
from components.sampler.command import Place, server_command

_ROOT = Path(__file__).parents[2]
LOCAL = "127.0.0.1"
"""The address that only this machine reaches."""
_LOG_LINES = 20
# The embedded server answers what it has and closes its sockets within a second; three are patience.
_EMBEDDED_GRACE_S = 3.0
# SGLang ends its schedulers first.
_SGLANG_GRACE_S = 8.0
_POLL_S = 0.2
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True, slots=True)
class _Launch:
    """How one server is started, again and again.

    Attributes:
        command: from (model folder, weight version, port, seed) to the command line.
        environment: beyond this process's own.
        wait: from (process, host, port, timeout in seconds, unwanted) to the port that answers; ServiceError when none
            does, or when it is unwanted before.
        grace_s: how long it may take to end in order.
        guarded: it must not be killed at once, since it ends others.
    """

    name: str
    host: str
    command: Callable[[Path, int, int, int], list[str]]
    environment: dict[str, str]
    wait: Callable[[subprocess.Popen[bytes], str, int, float, threading.Event], int]
    timeout_s: float
    grace_s: float
    guarded: bool
    log_path: Path
    unwanted: threading.Event

    def start(self, model_path: Path, weight_version: int, port: int, seed: int) -> tuple[subprocess.Popen[bytes], int]:
        """Starts the server and waits until it answers."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            offset = log.tell()
            process = subprocess.Popen(
                self.command(model_path, weight_version, port, seed),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C reaches the parent, which then closes the server in order
            )
        try:
            return process, self.wait(process, self.host, port, self.timeout_s, self.unwanted)
        except BaseException as error:
            self.drop(process)
            if isinstance(error, ServiceError):
                tail = tail_of(self.log_path, offset)
                raise ServiceError(f"{self.name} for {model_path}: {error}\n{tail}") from None
            raise

    def drop(self, process: subprocess.Popen[bytes]) -> None:
        """Ends a server that nobody waits for."""
        _end(process, self.grace_s if self.guarded else 0.0)


class SamplerServer:
    """A running server. `close()` ends it; so does the end of a `with` block, or of this process."""

    def __init__(self, launch: _Launch, model_path: Path, weight_version: int, port: int, seed: int) -> None:
        self._launch = launch
        self._process, self._port = launch.start(model_path, weight_version, port, seed)
        self.url = f"http://{launch.host}:{self._port}"
        self.log_path = launch.log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the process ended, as `subprocess` tells it; None while it runs."""
        return self._process.poll()

    def restart(self, model_path: Path, weight_version: int, seed: int) -> None:
        """Ends what runs, however it does, and starts anew with other weights at the same URL.

        Raises:
            ServiceError: the new one did not become ready; nothing runs then.
        """
        self._launch.drop(self._process)
        self._process, _ = self._launch.start(model_path, weight_version, self._port, seed)

    def kill(self) -> None:
        """Ends the server as fast as all of its processes allow, and waits for it. Idempotent."""
        self._launch.drop(self._process)

    def close(self) -> None:
        """Ends the server in order and waits for it. Idempotent."""
        _end(self._process, self._launch.grace_s)

    def __enter__(self) -> SamplerServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def launch_sampler(
    config: SamplerConfig,
    model_path: Path,
    *,
    seed: int,
    routing: bool,
    log_path: Path,
    weight_version: int = 0,
    host: str = LOCAL,
    port: int = 0,
    unwanted: threading.Event | None = None,
) -> SamplerServer:
    """Starts the configured server for a checkpoint folder and waits until it accepts requests.

    Args:
        routing: capture the experts of every token.
        log_path: the server's log; appended to.
        host: address of this machine that it listens on.
        port: 0 takes a free one.
        unwanted: set by whoever waits for it no longer; a server that is not ready by then is ended.

    Raises:
        ServiceError: it ended, was not ready within `config.start_timeout_s`, or is unwanted.
    """
    unwanted = unwanted or threading.Event()
    if config.sglang is None:
        how = _embedded(config, host, routing, log_path, unwanted)
    else:
        how = _sglang(config, host, routing, log_path, unwanted)
        port = port or _free_port(host)
    return SamplerServer(how, model_path, weight_version, port, seed)


def _embedded(config: SamplerConfig, host: str, routing: bool, log_path: Path, unwanted: threading.Event) -> _Launch:
    def command(model_path: Path, weight_version: int, port: int, seed: int) -> list[str]:
        place = Place(host, port, 0, seed)
        served = server_command(config, model_path, weight_version=weight_version, place=place, routing=routing)
        return [*served, "--parent", str(os.getpid())]

    environment = {"OMP_NUM_THREADS": str(config.threads), "PYTHONPATH": _python_path()}
    return _Launch(
        name="embedded sampler",
        host=host,
        command=command,
        environment=environment,
        wait=_wait_line,
        timeout_s=config.start_timeout_s,
        grace_s=_EMBEDDED_GRACE_S,
        guarded=False,
        log_path=log_path,
        unwanted=unwanted,
    )


def _sglang(config: SamplerConfig, host: str, routing: bool, log_path: Path, unwanted: threading.Event) -> _Launch:
    settings = config.sglang
    assert settings is not None

    def command(model_path: Path, weight_version: int, port: int, seed: int) -> list[str]:
        guard = [sys.executable, "-m", "components.sampler.guardian", "--parent", str(os.getpid())]
        guard += ["--grace-s", str(_SGLANG_GRACE_S)]
        # `env`, since the guardian is ours and must not see what the server is given (PYTHONPATH, say).
        given = [f"{name}={value}" for name, value in settings.environment.items()]
        place = Place(host, port, _free_port(host), seed)
        server = server_command(config, model_path, weight_version=weight_version, place=place, routing=routing)
        return [*guard, "env", *given, *server]

    return _Launch(
        name="SGLang",
        host=host,
        command=command,
        # /health then says whether the server is up; otherwise it generates, and hangs while paused.
        environment={"PYTHONPATH": _python_path(), "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"},
        wait=_wait_health,
        timeout_s=config.start_timeout_s,
        grace_s=_SGLANG_GRACE_S + 1,
        guarded=True,
        log_path=log_path,
        unwanted=unwanted,
    )


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))


def _free_port(host: str) -> int:
    """A port that is free now, from below the range that the kernel gives to outgoing connections."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise ServiceError(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free")


def _wait_line(
    process: subprocess.Popen[bytes], host: str, port: int, timeout_s: float, unwanted: threading.Event
) -> int:
    """Reads the embedded server's ready line.

    Raises:
        ServiceError: the process ended, stayed silent, or is unwanted.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            _require(deadline, timeout_s, unwanted)
            if not selector.select(min(_POLL_S, max(0.0, deadline - time.monotonic()))):
                continue
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                raise ServiceError(f"ended with exit code {process.wait()} before it was ready")
            line += part
    ready: dict[str, int] = json.loads(line)
    return ready["port"]


def _wait_health(
    process: subprocess.Popen[bytes], host: str, port: int, timeout_s: float, unwanted: threading.Event
) -> int:
    """Asks SGLang's `/health` until it answers 200, which it does after its warm-up.

    Raises:
        ServiceError: the process ended, stayed unhealthy, or is unwanted.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a node's address is not in `no_proxy`
    deadline = time.monotonic() + timeout_s
    while True:
        _require(deadline, timeout_s, unwanted)
        if process.poll() is not None:
            raise ServiceError(f"ended with exit code {process.returncode} before it was ready")
        try:
            with direct.open(f"http://{host}:{port}/health", timeout=_POLL_S * 5):
                return port
        except (urllib.error.URLError, OSError):
            unwanted.wait(_POLL_S)


def _require(deadline: float, timeout_s: float, unwanted: threading.Event) -> None:
    """Raises ServiceError when a server need not be waited for any longer."""
    if unwanted.is_set():
        raise ServiceError("was ended while it started")
    if time.monotonic() >= deadline:
        raise ServiceError(f"was not ready within {timeout_s:g} s")


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()  # the lifeline: the server stops by itself
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def tail_of(path: Path, offset: int = 0) -> str:
    """The last lines of a log, from `offset` on."""
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])
