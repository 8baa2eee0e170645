"""A real Docker engine in namespaces of its own, and a base image out of this machine's own packages.

The engine's network, processes and mounts are its own, so that its end, however it comes, leaves control groups and one
folder, which are removed here. No registry is asked for anything.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from components.config import SandboxConfig

DAEMON = "dockerd"
NEEDED = ("dockerd", "containerd", "runc", "unshare", "dpkg-query")
PACKAGES = (
    "base-files", "bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip", "hostname", "libc-bin",
    "mawk", "procps", "sed", "tar", "util-linux",
)  # fmt: skip
"""What a small Debian image has."""
PYTHON = ("python3-minimal", "libpython3-stdlib", "less")
"""What tests of tasks want beside it."""
LEFT_OUT = re.compile(r"^/usr/share/(doc|man|locale|info|bash-completion|lintian|zoneinfo)/|/perl")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FOLDERS = (
    "etc",
    "usr",
    "usr/local",
    "usr/local/bin",
    "root",
    "home",
    "opt",
    "srv",
    "var",
    "var/lib",
    "var/log",
    "run",
    "tmp",
    "proc",
    "sys",
    "dev",
)
PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
BASE, WITH_PYTHON = "debian:12", "longshell-test/python:1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
READY_S = 30.0
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
START = """
ip link set lo up 2>/dev/null
exec dockerd --data-root "$0/data" --exec-root "$1" --pidfile "$0/pid" -H "unix://$0/docker.sock" \\
  --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "$2" --iptables=false --bridge=none --log-level warn
"""


def missing() -> str:
    """Why no engine can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "an engine of the tests' own needs root"
    absent = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if absent:
        return f"{', '.join(absent)}: not installed (Debian, Ubuntu: apt-get install --no-install-recommends docker.io)"
    return ""


needs_docker = pytest.mark.skipif(bool(missing()), reason=missing() or "an engine can be started")


class Engine:
    """One dockerd."""

    def __init__(self, folder: Path, *, networked: bool) -> None:
        self.folder = folder
        self._networked = networked
        self.host = f"unix://{folder}/docker.sock"
        self._group = f"/longshell-test-{folder.name}"
        self._wrapper: subprocess.Popen[bytes] | None = None

    def config(self, image: str = BASE, **changes: object) -> SandboxConfig:
        """A configuration that names it."""
        return SandboxConfig(backend="docker", docker={"host": self.host, "image": image, **changes})

    def start(self) -> None:
        """Until it answers. The state of the one before is used again, but for its sockets."""
        (self.folder / "docker.sock").unlink(missing_ok=True)
        (self.folder / "pid").unlink(missing_ok=True)
        runtime = self.folder / f"exec-{secrets.token_hex(3)}"  # a stale one holds pids that are others' now
        network = [] if self._networked else ["--net"]
        own = ["unshare", *network, "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
        with (self.folder / "log").open("ab") as log:
            self._wrapper = subprocess.Popen(
                [*own, "bash", "-c", START, str(self.folder), str(runtime), self._group],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if time.monotonic() > deadline or self._wrapper.poll() is not None:
                raise RuntimeError(f"dockerd did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(f"{self.folder}/docker.sock")
                probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200 OK" in probe.recv(200)
            except OSError:
                return False

    @property
    def pid(self) -> int:
        """Of a process in the engine's network, while it runs."""
        assert self._wrapper is not None
        return self._wrapper.pid

    def kill(self) -> None:
        """SIGKILL for the engine and, with its pid namespace, for all that it runs.

        Its containerd would remove the control groups when it is back. It does not come back, since `start` begins with
        a runtime folder of its own, as after a reboot, which leaves no groups either.
        """
        if self._wrapper is not None:
            wrapper, self._wrapper = self._wrapper, None
            wrapper.kill()
            wrapper.wait()
        deadline = time.monotonic() + READY_S
        while self._groups() and time.monotonic() < deadline:
            for group in self._groups():
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.02)

    def remove(self) -> None:
        """Leave nothing."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def containers_groups(self) -> list[Path]:
        """Control groups that containers have, or have left."""
        return [group for group in self._groups() if CONTAINER_ID.fullmatch(group.name)]

    def _groups(self) -> list[Path]:
        found = []
        for root, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
            if self._group in root:
                found.append(Path(root))
        return found


@contextmanager
def engine(*, networked: bool = False) -> Iterator[Engine]:
    """A running engine that has the base image; `networked`: whose builds may have the host's network."""
    made = Engine(Path(tempfile.mkdtemp(prefix="longshell-dockerd-", dir="/tmp")), networked=networked)
    try:
        made.start()
        import_base(made)
        yield made
    finally:
        made.remove()


def import_base(made: Engine, name: str = BASE, more: tuple[str, ...] = ()) -> None:
    """Give the engine a base image, with more packages in it; nothing is done where it has one of this name."""
    client = docker.APIClient(base_url=made.host)
    if not client.images(name):
        changes = [f"ENV PATH={PATH}"]
        client.import_image_from_data(base_archive(more), *name.split(":"), changes=changes)
    client.close()


def import_folder(made: Engine, root: Path, names: Sequence[str], env: Mapping[str, str]) -> None:
    """Give the engine a root file system under each of the names."""
    client = docker.APIClient(base_url=made.host)
    with tempfile.NamedTemporaryFile() as archive:
        subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-cf", archive.name, "."], check=True)
        settings = [f"ENV {name}={value}" for name, value in {"PATH": PATH, **env}.items()]
        client.import_image_from_file(archive.name, *names[0].split(":"), changes=settings)
    for name in names[1:]:
        client.tag(names[0], *name.split(":"))
    client.close()


def base_archive(more: tuple[str, ...]) -> bytes:
    """The base image's files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for file in package_files((*PACKAGES, *more)):
            archive.add(file, file.lstrip("/"), recursive=False)
        for name, text in (("passwd", PASSWD), ("group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n")):
            entry = tarfile.TarInfo(f"etc/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


def package_files(packages: tuple[str, ...]) -> list[str]:
    """Every file of these and of what they depend on, as this machine has it, by its place in a merged /usr."""
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    needs = dict(line.split("\t", 1) for line in shown.stdout.splitlines())
    wanted, waiting = set(), list(packages)
    while waiting:
        name = waiting.pop()
        if name in needs and name not in wanted and not name.startswith("perl"):
            wanted.add(name)
            waiting += [re.split(r"[ :(|]", one.strip())[0] for one in needs[name].split(",")]
    listed = subprocess.run(["dpkg-query", "-L", *sorted(wanted)], capture_output=True, text=True, check=True)
    found = set()
    for path in listed.stdout.splitlines():
        if not path.startswith("/") or path == "/." or LEFT_OUT.search(path) or not os.path.lexists(path):
            continue
        merged = f"/usr{path}" if path.split("/")[1] in LINKS else path
        if os.path.islink(merged) or os.path.isfile(merged):
            found.add(merged)
        if merged.endswith(".py"):  # no package lists its bytecode, and without it each start of Python compiles anew
            found |= {str(path) for path in Path(merged).parent.glob(f"__pycache__/{Path(merged).stem}.cpython-*.pyc")}
    found |= {f"/etc/alternatives/{name}" for name in os.listdir("/etc/alternatives") if "awk" in name}
    found |= {f"/usr/bin/{name}" for name in ("awk",) if os.path.lexists(f"/usr/bin/{name}")}
    return sorted(found | {"/etc/ld.so.cache", "/etc/ld.so.conf"})
