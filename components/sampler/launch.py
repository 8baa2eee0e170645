"""Starting the embedded server as a child process.

Invariant: the child never outlives its parent, and a child that does not become ready raises one `ServiceError` with
the last lines of its log.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from components.config import SamplerConfig
from components.errors import ServiceError

_ROOT = Path(__file__).parents[2]
_LOG_LINES = 20
# A server answers what it has and closes its sockets within a second; three are patience.
_STOP_GRACE_S = 3.0


class EmbeddedServer:
    """A running embedded server. `close()` ends it; so does the end of a `with` block, or of this process."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
        self._process = process
        self.url = url
        self.log_path = log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the server and waits for it. Idempotent."""
        _end(self._process)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def launch_embedded(
    config: SamplerConfig,
    model_path: Path,
    *,
    seed: int,
    routing: bool,
    log_path: Path,
    weight_version: int = 0,
    port: int = 0,
) -> EmbeddedServer:
    """Starts a server for a checkpoint folder and waits until it accepts connections.

    Args:
        routing: capture the experts of every token.
        log_path: the server's log; appended to.
        port: 0 takes a free one.

    Raises:
        ServiceError: it ended, or was not ready within `config.start_timeout_s`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads), "PYTHONPATH": _python_path()}
    with log_path.open("ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            _command(config, model_path, seed=seed, routing=routing, weight_version=weight_version, port=port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent, which then closes the server in order
        )
    try:
        ready = _wait_ready(process, config.start_timeout_s)
    except BaseException as error:
        _end(process, grace_s=0.0)
        if isinstance(error, ServiceError):
            raise ServiceError(f"embedded sampler for {model_path}: {error}\n{_tail(log_path, offset)}") from None
        raise
    return EmbeddedServer(process, f"http://{ready['host']}:{ready['port']}", log_path)


def _command(
    config: SamplerConfig, model_path: Path, *, seed: int, routing: bool, weight_version: int, port: int
) -> list[str]:
    values = {
        "--model": model_path,
        "--port": port,
        "--slots": config.slots,
        "--context": config.context_tokens,
        "--prefill-tokens": config.prefill_tokens,
        "--dtype": config.dtype,
        "--router-dtype": config.router_dtype,
        "--threads": config.threads,
        "--seed": seed,
        "--weight-version": weight_version,
        "--parent": os.getpid(),
    }
    flags = [str(part) for pair in values.items() for part in pair]
    capture = ["--enable-return-routed-experts"] if routing else []
    return [sys.executable, "-m", "components.sampler.server", *flags, *capture]


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))


def _wait_ready(process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, object]:
    """Reads the ready line.

    Raises:
        ServiceError: the process ended or stayed silent.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise ServiceError(f"was not ready within {timeout_s:g} s")
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                raise ServiceError(f"ended with exit code {process.wait()} before it was ready")
            line += part
    ready: dict[str, object] = json.loads(line)
    return ready


def _end(process: subprocess.Popen[bytes], grace_s: float = _STOP_GRACE_S) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()  # the lifeline: the server stops by itself
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _tail(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])
