"""The sandbox host's image, built by a real engine without a registry.

The base is made of this machine's own packages, which are those that the image installs: nothing is fetched.
"""

from __future__ import annotations

import io
import subprocess
import tarfile

import docker
import pytest

from components.cluster import REPOSITORY
from tests import dockerd
from tests.infra.test_images import IMAGES, arguments

PACKAGES = ("apt", "ca-certificates", "docker.io", "tini", "xfsprogs")
pytestmark = [pytest.mark.nightly, dockerd.needs_docker]


def absent() -> str:
    # One that was removed is known all the same.
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status} ", *PACKAGES]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    installed = shown.stdout.split() == ["installed"] * len(PACKAGES)
    return "" if installed else f"not all of {', '.join(PACKAGES)} are installed here"


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
