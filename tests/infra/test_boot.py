"""What machines do when they boot, run here: their scripts are real, and what they call only tells that it was called.

Invariant: no boot but the first makes a disk, and each makes the machine ready, or leaves it to the unit that tries on.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.infra.terraform import ROOT

CALLED = ("aws", "docker", "mount", "mountpoint", "systemctl", "chown", "blkid", "mkfs.xfs")
STUB = """#!/bin/bash
said="$(basename "$0") $*"
echo "$said" >> {folder}/calls
case "$said" in
  *get-secret-value*) [ -e {folder}/secrets ] || exit 254; echo '{{"ca.pem": "a", "cert.pem": "b", "key.pem": "c"}}' ;;
  blkid*) [ -e {folder}/disk ] || exit 2 ;;
  mkfs*) [ ! -e {folder}/disk ] || exit 1; touch {folder}/disk ;;
  mountpoint*) exit 32 ;;
esac
"""
COMMON = {"region": "us-east-2", "image": "registry.example/unit/image:1", "log_group": "/unit/group"}
RAY = {
    "shared_id": "fs-1",
    "access_point_id": "fsap-1",
    "ray_secret": "arn:ray",
    "docker_secret": "arn:docker",
    "gpus": "true",
    "start": "--head",
}
HOST = {"secret": "arn:server", "daemon": "{}", "host": "sandbox-0"}
CASES = {"ray_cluster/node.sh.tftpl": COMMON | RAY, "sandbox_pool/host.sh.tftpl": COMMON | HOST}


@dataclass(frozen=True)
class Machine:
    """A folder that is the root of a machine which has booted for the first time."""

    root: Path
    folder: Path

    @classmethod
    def of(cls, template: str, folder: Path) -> Machine:
        machine = cls(folder / "root", folder)
        for name in CALLED:
            stub = folder / "bin" / name
            stub.parent.mkdir(exist_ok=True)
            stub.write_text(STUB.format(folder=folder))
            stub.chmod(0o755)
        for made in ("usr/local/sbin", "etc/systemd/system", "opt/aws/amazon-cloudwatch-agent/etc", "run"):
            (machine.root / made).mkdir(parents=True)
        agent = machine.root / "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
        agent.parent.mkdir()
        shutil.copy(stub, agent)
        (folder / "user-data").write_text(machine.rooted(rendered(template, CASES[template])))
        machine.run(folder / "user-data").check_returncode()
        return machine

    def rooted(self, text: str) -> str:
        """With the paths that it reads and writes below `root`."""
        return re.sub(r"(?<![\w.:])/(?=(run|shared|usr/local|etc|var|opt|dev/sdf)\b)", f"{self.root}/", text)

    def run(self, script: Path) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(["bash", script], env={"PATH": path}, capture_output=True, text=True, check=False)

    def calls(self) -> list[str]:
        """What was called since the last time that it was asked."""
        file = self.folder / "calls"
        told = file.read_text().splitlines() if file.exists() else []
        file.write_text("")
        return told

    def unit(self) -> configparser.RawConfigParser:
        (file,) = (self.root / "etc/systemd/system").glob("*.service")
        parser = configparser.RawConfigParser(strict=False)
        parser.read(file)
        return parser

    def boot(self) -> bool:
        """What the unit starts, after a reboot; whether it ended well."""
        shutil.rmtree(self.root / "run")
        (self.root / "run").mkdir()
        return self.run(Path(self.unit()["Service"]["ExecStart"])).returncode == 0


def rendered(template: str, values: dict[str, str]) -> str:
    """A template as Terraform renders it, as far as these use its language."""
    text = (ROOT / "modules" / template).read_text()
    text = re.sub(
        r"%\{ if (\w+) ~\}\n(.*?)%\{ endif ~\}\n", lambda found: found[2] if values[found[1]] else "", text, flags=re.S
    )
    text = re.sub(r"(?<!\$)\$\{(\w+)\}", lambda found: values[found[1]], text)
    return text.replace("$${", "${")


@pytest.mark.parametrize("template", CASES)
def test_the_first_boot_leaves_a_unit_that_starts_at_every_boot_and_tries_until_it_is_done(
    template: str, tmp_path: Path
) -> None:
    machine = Machine.of(template, tmp_path)
    said = machine.calls()
    assert [call for call in said if not call.startswith("systemctl")] == []  # nothing that secrets or disks can fail
    unit = machine.unit()
    name = Path(unit["Service"]["ExecStart"]).name
    assert f"systemctl enable --now --no-block {name}" in said
    assert (machine.root / "etc/systemd/system" / f"{name}.service").exists()
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert unit["Service"]["Restart"] in ("always", "on-failure")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_node_of_ray_starts_at_every_boot_and_waits_for_its_secrets(tmp_path: Path) -> None:
    machine = Machine.of("ray_cluster/node.sh.tftpl", tmp_path)
    machine.calls()
    assert not machine.boot()
    assert not any("docker run" in call for call in machine.calls())
    (tmp_path / "secrets").touch()
    for _ in range(2):
        assert machine.boot()
        said = machine.calls()
        assert [call.split()[:2] for call in said if call.startswith("docker")][-3:] == [
            ["docker", "rm"],
            ["docker", "run"],
            ["docker", "wait"],
        ]
        assert any(call.startswith("mount -t efs -o tls,iam,accesspoint=fsap-1 fs-1:/ ") for call in said)
        token = machine.root / "run/longshell/ray_token"
        assert token.stat().st_mode & 0o077 == 0
        assert (machine.root / "run/longshell/docker/key.pem").read_text() == "c\n"


def test_a_docker_host_starts_at_every_boot_and_makes_its_disk_once(tmp_path: Path) -> None:
    machine = Machine.of("sandbox_pool/host.sh.tftpl", tmp_path)
    assert "systemctl disable --now docker docker.socket" in machine.calls()
    assert not machine.boot()
    said = machine.calls()
    assert any(call.startswith("mkfs.xfs") for call in said)
    assert not any("start docker" in call for call in said)
    (tmp_path / "secrets").touch()
    for _ in range(2):
        assert machine.boot()
        said = machine.calls()
        assert not any(call.startswith("mkfs.xfs") for call in said)
        assert any(call.startswith("mount -t xfs -o nodev,pquota") for call in said)
        assert said.index("systemctl start docker") < said.index("docker pull registry.example/unit/image:1")
        assert (machine.root / "etc/docker/tls/key.pem").read_text() == "c\n"


def test_nothing_on_a_docker_host_speaks_to_what_the_network_refuses(tmp_path: Path) -> None:
    machine = Machine.of("sandbox_pool/host.sh.tftpl", tmp_path)
    assert "systemctl mask --now amazon-ssm-agent" in machine.calls()
