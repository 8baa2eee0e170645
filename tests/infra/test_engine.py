"""The sandbox host's configuration, as a real engine takes it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from components.cluster import REPOSITORY
from tests import dockerd
from tests.infra.test_images import IMAGES
from tests.sandbox.test_docker_tls import Authority

START = """
ip link set lo up 2>/dev/null
exec dockerd --config-file "$0/daemon.json" --exec-root "$1" --pidfile "$0/pid" \\
  --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "$2" --log-level warn
"""
PING = """
import sys
from pathlib import Path
from components.sandbox.docker.engine import Certificates, Engine
engine = Engine("tcp://127.0.0.1:2376", Certificates(Path(sys.argv[1])) if sys.argv[1:] else None)
print(engine.call_now("ping", lambda api: api.ping()))
"""

pytestmark = [pytest.mark.nightly, dockerd.needs_docker]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dockerd.Engine, Authority]]:
    """An engine that runs by the image's daemon.json, with its paths below a folder."""
    monkeypatch.setattr(dockerd, "START", START)
    engine = dockerd.Engine(Path(tempfile.mkdtemp(prefix="longshell-dockerd-", dir="/tmp")), networked=False)
    authority = Authority()
    authority.issue(engine.folder / "tls")
    config = (IMAGES / "sandbox-host" / "daemon.json").read_text()
    for before, after in (
        ("/etc/docker/tls", f"{engine.folder}/tls"),
        ("/var/lib/docker", f"{engine.folder}/data"),
        ("unix:///var/run/docker.sock", engine.host),
    ):
        assert before in config
        config = config.replace(before, after)
    (engine.folder / "daemon.json").write_text(config)
    try:
        engine.start()
        yield engine, authority
    finally:
        engine.remove()


def test_an_engine_runs_by_the_configuration_and_answers_who_has_a_certificate(
    configured: tuple[dockerd.Engine, Authority], tmp_path: Path
) -> None:
    engine, authority = configured
    client = docker.APIClient(base_url=engine.host)
    told = client.info()
    client.close()
    assert (told["LoggingDriver"], told["Driver"]) == ("none", "overlay2")
    assert json.loads((IMAGES / "sandbox-host" / "daemon.json").read_text())["bridge"] == "none"
    known, stranger = authority.issue(tmp_path / "known"), Authority().issue(tmp_path / "stranger")
    shutil.copy(known / "ca.pem", stranger / "ca.pem")
    assert (_ping(engine, known).returncode, _ping(engine, known).stdout.strip()) == (0, "True")
    for nobody in (_ping(engine, stranger), _ping(engine)):
        assert nobody.returncode != 0
        assert "does not answer" in nobody.stderr or "refused" in nobody.stderr


def _ping(engine: dockerd.Engine, *folder: Path) -> subprocess.CompletedProcess[str]:
    """Asks the engine from within its network."""
    return subprocess.run(
        ["nsenter", f"--net=/proc/{engine.pid}/ns/net", sys.executable, "-c", PING, *map(str, folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
