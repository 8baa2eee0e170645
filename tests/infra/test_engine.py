"""The sandbox host's image, built, and its configuration, run: by a real engine, without a registry.

The base is made of this machine's own packages, which are those that the image installs: nothing is fetched.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from components.cluster import REPOSITORY
from tests import dockerd
from tests.infra.test_images import IMAGES, arguments
from tests.sandbox.test_docker_tls import Authority

PACKAGES = ("apt", "ca-certificates", "docker.io", "tini", "xfsprogs")
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


def absent() -> str:
    shown = subprocess.run(["dpkg-query", "-W", *PACKAGES], capture_output=True, check=False)
    return "" if shown.returncode == 0 else f"not all of {', '.join(PACKAGES)} are installed here"


@pytest.mark.skipif(bool(absent()), reason=absent() or "its packages are here")
def test_the_sandbox_hosts_image_builds_and_has_its_engine_and_its_configuration() -> None:
    with dockerd.engine() as engine:
        client = docker.APIClient(base_url=engine.host, timeout=300)
        base = arguments("sandbox-host")["BASE"]
        client.import_image_from_data(_base(), *base.split(":"), changes=[f"ENV PATH={dockerd.PATH}"])
        told = list(
            client.build(
                path=str(REPOSITORY), dockerfile="infra/images/sandbox-host/Dockerfile", tag="built:1", decode=True
            )
        )
        assert "Successfully tagged" in told[-1].get("stream", ""), told[-3:]
        config = client.inspect_image("built:1")["Config"]
        assert config["Entrypoint"] == ["tini", "--", "dockerd"]
        assert config["ExposedPorts"] == {"2376/tcp": {}}
        shown = _run(
            client, ["sh", "-c", "dockerd --version && command -v mkfs.xfs tini && cat /etc/docker/daemon.json"]
        )
        assert "Docker version" in shown
        assert (IMAGES / "sandbox-host" / "daemon.json").read_text() in shown
        client.close()


def _base() -> bytes:
    """A base image that believes that it has everything, and knows no mirror."""
    data = io.BytesIO(dockerd.base_archive(PACKAGES))
    with tarfile.open(fileobj=data, mode="a") as archive:
        archive.add("/var/lib/dpkg/status", "var/lib/dpkg/status")
        for folder in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "etc/apt", "var/lib/dpkg/info"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
    return data.getvalue()


def _run(client: docker.APIClient, command: list[str]) -> str:
    made = client.create_container(
        "built:1", entrypoint=command, host_config=client.create_host_config(network_mode="none")
    )
    client.start(made["Id"])
    client.wait(made["Id"], timeout=60)
    return str(client.logs(made["Id"]).decode())


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
