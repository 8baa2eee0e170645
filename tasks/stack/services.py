"""What the services are: how each is started and when it is ready."""

from __future__ import annotations

import hashlib
import secrets
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.site import Site
from tasks.stack import ports
from tasks.stack.settings import WORK_POOL, make_token

_RAY_DIRECTORY_MAX = 40
"""Ray puts Unix sockets below its directory, and their paths may have 107 characters in all."""
_OBJECT_STORE_BYTES = 100_000_000
"""Jobs pass references to the artifact store, never arrays through Ray."""
_NO_DATABASES = {"LONGSHELL_PREFECT_DATABASE": "", "MLFLOW_TRACKING_URI": ""}
"""Jobs know neither Prefect nor MLflow: they need not have the passwords that may be in these."""
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray turns 127.0.0.1 into the machine's address and listens on all of them, unless it is told that no other machine
can join, for which this is its only switch. A driver that is no job needs it too."""
_bin = Path(sys.executable).parent


@dataclass(frozen=True)
class Service:
    """How to start one service."""

    name: str
    argv: tuple[str, ...]
    url: str
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = 180.0
    """A first start on a busy machine: Prefect's migrations alone take 20 s on an idle one."""
    starts: int = 1
    """How often it is started when it ends before it is ready."""


def prefect(site: Site) -> Service:
    """The Prefect server, on SQLite in the state directory or on the database that is given."""
    port = ports.choose("prefect", site.ports.get("prefect"), site.service("prefect"))
    url = f"http://127.0.0.1:{port}/api"
    argv = (str(_bin / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port))
    settings = {"PREFECT_API_URL": url, "PREFECT_SERVER_UI_API_URL": url}
    if site.prefect_database is not None:
        settings["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = site.prefect_database
    return Service("prefect", argv, url, lambda: answers(f"{url}/health"), settings)


def worker(site: Site) -> Service:
    """A process worker for every deployment; ready once the server lists it."""
    url, name = site.service("prefect"), f"longshell-{secrets.token_hex(3)}"  # A dead one is listed for a while.
    argv = (
        *(str(_bin / "prefect"), "worker", "start", "--pool", WORK_POOL, "--type", "process"),
        *("--name", name, "--install-policy", "never"),
    )
    listing = f"{url}/work_pools/{WORK_POOL}/workers/filter"
    return Service("worker", argv, "", lambda: name.encode() in (fetch(listing, data=b"{}") or b""))


def ray(site: Site) -> Service:
    """A Ray head with the Jobs API; ready once it has a node, for its dashboard answers before.

    A raylet whose agent is not up within 15 s, as happens on a busy machine, takes the head with it; nothing can be set
    (ray-project/ray#65983). It is started again.
    """
    port = ports.choose("ray", site.ports.get("ray"), site.service("ray"))
    url = f"http://127.0.0.1:{port}"
    argv = [str(_bin / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--log-color", "false"]
    options = {
        "node-ip-address": "127.0.0.1",
        "port": ports.any_free(),
        "dashboard-host": "127.0.0.1",
        "dashboard-port": port,
        "ray-client-server-port": ports.any_free(),
        "dashboard-agent-listen-port": ports.any_free(),
        "dashboard-agent-grpc-port": ports.any_free(),
        "metrics-export-port": ports.any_free(),
        "num-cpus": 0,  # Nothing of ours asks for one; for each, Ray would start an idle process.
        "object-store-memory": _OBJECT_STORE_BYTES,
        "temp-dir": ray_directory(site.home),
    }
    argv += [f"--{name}={value}" for name, value in options.items()]
    argv += ["--no-monitor", "--include-log-monitor=false"]  # It does not grow, and its jobs' logs are read as files.
    make_token(site.ray_token)
    headers = {"Authorization": f"Bearer {site.ray_token.read_text()}"}
    nodes = f"{url}/api/v0/nodes?limit=1"
    settings = {**_NO_DATABASES, **_LOOPBACK}
    return Service("ray", tuple(argv), url, lambda: b'"ALIVE"' in (fetch(nodes, headers) or b""), settings, starts=3)


def mlflow(site: Site) -> Service:
    """The MLflow server. Flows write to the database directly; the server is for people."""
    (site.home / "mlflow").mkdir(exist_ok=True)
    port = ports.choose("mlflow", site.ports.get("mlflow"), site.service("mlflow"))
    url = f"http://127.0.0.1:{port}"
    argv = [str(_bin / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    argv += ["--artifacts-destination", str(site.home / "mlflow/artifacts")]
    # Not on the command line, which every user of the machine can read: there may be a password in it.
    settings = {"MLFLOW_BACKEND_STORE_URI": site.tracking_uri}
    return Service("mlflow", tuple(argv), url, lambda: answers(f"{url}/health"), settings)


BUILDERS: Mapping[str, Callable[[Site], Service]] = {
    "prefect": prefect,
    "ray": ray,
    "mlflow": mlflow,
    "worker": worker,
}
"""Everything that can be started. A worker needs a Prefect server that is ready."""


def ray_directory(home: Path) -> Path:
    """Ray's directory: in the state directory unless its path is too long for sockets."""
    inside = home / "ray"
    if len(str(inside)) <= _RAY_DIRECTORY_MAX:
        return inside
    short = hashlib.sha256(str(home).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"longshell-ray-{short}"


def fetch(url: str, headers: Mapping[str, str] | None = None, data: bytes | None = None) -> bytes | None:
    """The body of a successful answer within two seconds; None otherwise."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=2.0) as answer:
            body: bytes = answer.read()
            return body
    except (urllib.error.URLError, OSError):
        return None


def answers(url: str, headers: Mapping[str, str] | None = None) -> bool:
    """Whether `url` answers with success."""
    return fetch(url, headers) is not None
