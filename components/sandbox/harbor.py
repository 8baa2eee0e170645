"""A Harbor environment over our sandboxes, and a verifier: `harbor run --environment-import-path` of the class below,
and, where verdicts must be out of the agent's reach, `--verifier-import-path` of the other.

Runs in Harbor's own Python (≥ 3.12), which finds this project by PYTHONPATH, with pyte and wcwidth beside it, and is
imported by nothing of ours. Every trial has a backend of its own, which ends with it and with Harbor. Arguments
(`--ek name=value`) are keys of `SandboxConfig`, and `state`, a folder for what a backend keeps.

Invariant: what a task asks for is given, or its start is refused: CPUs and memory as limits, the network by Harbor's
policy (`public` is every host that the proxy allows for `*`). Only `--ek network=none` takes the network away. What our
verifier sees are the files that the agent left: no process of its, no folder that it laid for the tests or the verdict.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.verifier import Verifier

from components.config import SandboxConfig
from components.errors import FaultCause, InfraFault
from components.sandbox import FileEntry, ImageSpec, Sandbox, SandboxBackend, SandboxSpec, open_backend
from components.sandbox.image import read_dockerfile
from components.sandbox.unpack import unpack

log = logging.getLogger(__name__)

FOLDERS = ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution")
LAY_OUT = """rm -rf --one-file-system -- /tests /logs || exit 1
stands() { (cd -P -- "$1" && [[ $PWD/ != /proc/* ]]) 2>/dev/null; }
anew() { rm -rf --one-file-system -- "$1"; mkdir -p -- "$2"; stands "$2"; }
top=${1#/}; top=/${top%%/*}
stands "$1" || anew "$1" "$1" || anew "$top" "$1" || exit 1
shift
system='^/(usr|etc|bin|boot|dev|lib[^/]*|proc|run|sbin|sys)/'
for path; do
    place=$(cd -P -- "${path%/*}" 2>/dev/null && pwd)
    [[ ${place%/}/${path##*/}/ =~ $system ]] || rm -rf --one-file-system -- "$path" || exit 1
done
"""
"""As `components.harness.verification` does, which needs more than Harbor's Python has."""
LAY_OUT_S = 60.0
NO_TIMEOUT_S = 86_400
"""Harbor ends a trial by its own deadlines; a command that names none is still ended some day."""
OUTPUT_BYTES = 16 << 20
ARCHIVE_BYTES = 1 << 30
TIMED_OUT = 124
DEFAULT_MEMORY_MB = 2_048
DEFAULT_DISK_MB = 2_048
"""Files of a namespace box lie in memory: a task that asks for 10 GB is given this, unless `disk_mb` says more."""


class LongshellEnvironment(BaseEnvironment):  # type: ignore[misc]
    """One trial's box."""

    def __init__(self, *args: Any, state: str | None = None, **kwargs: Any) -> None:
        settings = {name: kwargs.pop(name) for name in SandboxConfig.model_fields if name in kwargs}
        self._settings: dict[str, Any] = settings
        home = os.environ.get("LONGSHELL_HOME", Path.home() / ".cache" / "longshell")
        self._state = Path(state or Path(home) / "harbor")
        self._backend: SandboxBackend | None = None
        self._box: Sandbox | None = None
        self._workdir = "/"
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "longshell"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file() and not self.task_env_config.docker_image:
            raise FileNotFoundError(f"{self.environment_dir} has no Dockerfile, and the task names no image")

    def config(self) -> SandboxConfig:
        """The sandbox that this trial's task asks for."""
        hosts = {
            NetworkMode.NO_NETWORK: (),
            NetworkMode.PUBLIC: ("*",),
            NetworkMode.ALLOWLIST: tuple(self.network_policy.allowed_hosts),
        }[self.network_policy.network_mode]
        if self._settings.get("network") == "none":
            hosts = ()
        asked: dict[str, Any] = {
            "cpus": self._effective_cpus or 1.0,
            "memory_mb": self._effective_memory_mb or DEFAULT_MEMORY_MB,
            "disk_mb": min(self._effective_storage_mb or DEFAULT_DISK_MB, DEFAULT_DISK_MB),
            "pids": 512,
        }
        if hosts:
            asked |= {"hosts": hosts, "network": "proxy", "verifier_network": "proxy"}
            if self._settings.get("backend") != "docker":  # an engine builds by itself: docker.build_network
                asked["build_network"] = "proxy"
        return SandboxConfig(**{**asked, **self._settings})

    async def start(self, force_build: bool) -> None:
        """The image is built where its key has not been built yet; `force_build` asks for no more than that."""
        config = self.config()
        image = self._image()
        self._workdir = self.task_env_config.workdir or image.workdir
        self._backend = await open_backend(config, self._state)
        folders = {folder: FileEntry(mode=0o777, kind="directory") for folder in FOLDERS}
        spec = SandboxSpec.within(config, image=image, files=folders, env=self._startup_env())
        self._box = await self._backend.start(spec)
        await self._upload_environment_dir_after_start()

    def _image(self) -> ImageSpec:
        if (self.environment_dir / "Dockerfile").is_file():
            return read_dockerfile(self.environment_dir)
        return ImageSpec(str(self.task_env_config.docker_image))

    @property
    def _started(self) -> Sandbox:
        if self._box is None:
            raise RuntimeError("the environment has not been started")
        return self._box

    async def stop(self, delete: bool) -> None:
        """Nothing of a box outlives it, whether it is to be deleted or not."""
        box, self._box = self._box, None
        backend, self._backend = self._backend, None
        if box is not None:
            await box.stop()
        if backend is not None:
            await backend.close()

    @asynccontextmanager
    async def fresh(self, instruction: str) -> AsyncIterator[None]:
        """Within it a fresh box over the agent's files is this environment; the agent's processes have ended.

        What in the home folder would be loaded is not there, unless the instruction asks for it.

        Raises:
            InfraFault: the view, or the folders of the verifier in it, cannot be made.
        """
        agents = self._started
        view = await agents.fork_view()
        try:
            unasked = view.left.unasked(instruction)
            command = ["/bin/bash", "--noprofile", "--norc", "-c", LAY_OUT, "lay-out", self._workdir, *unasked]
            made = await view.exec(command, timeout_s=LAY_OUT_S, cwd="/", user="root")
            if made.exit_code != 0:
                said = made.output[-600:].decode("utf-8", "replace")
                raise InfraFault(FaultCause.SANDBOX, f"cannot prepare the verifier's folders: {said}")
            await view.put({folder: FileEntry(mode=0o777, kind="directory") for folder in FOLDERS})
            self._box = view
            yield
        finally:
            self._box = agents
            await view.stop()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        who = self._resolve_user(user)
        result = await self._started.exec(
            ["bash", "-c", command],
            timeout_s=timeout_sec or NO_TIMEOUT_S,
            cwd=cwd or self._workdir,
            env=self._merge_env(env),
            max_output_bytes=OUTPUT_BYTES,
            merge_stderr=False,
            user=None if who is None else str(who),
        )
        said, errors = (text.decode("utf-8", "replace") for text in (result.output, result.stderr or b""))
        if result.exit_code is None:
            return ExecResult(stdout=said, stderr=f"{errors}timed out after {timeout_sec} s", return_code=TIMED_OUT)
        return ExecResult(stdout=said, stderr=errors, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        content = await asyncio.to_thread(source.read_bytes)
        await self._started.put({str(target_path): FileEntry(content, mode, name=source.name)})

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._started.put_tree(Path(source_dir), str(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        content = await self._started.get(str(source_path), max_bytes=ARCHIVE_BYTES)
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """By an archive. What of it would lead out of the folder, a link above all, is left out, and told."""
        folder = shlex.quote(str(source_dir))
        packed = await self._started.exec(
            ["bash", "-c", f"tar -C {folder} -cf - . "],
            timeout_s=NO_TIMEOUT_S,
            cwd="/",
            max_output_bytes=ARCHIVE_BYTES,
            merge_stderr=False,
            user="root",
        )
        if packed.exit_code != 0 or packed.truncated:
            said = (packed.stderr or b"").decode("utf-8", "replace").strip()
            raise RuntimeError(f"cannot download {source_dir}: {said or 'it is too large'}")
        left_out = await asyncio.to_thread(unpack, packed.output, Path(target_dir))
        if left_out:
            log.warning("not downloaded from %s: %s", source_dir, ", ".join(left_out))


class LongshellVerifier(Verifier):  # type: ignore[misc]
    """Harbor's own verifier, out of the agent's reach: in a fresh box over what the agent left."""

    async def verify(self) -> VerifierResult:
        """See `harbor.verifier.verifier.Verifier.verify`.

        Raises:
            TypeError: the environment is not ours.
        """
        if not isinstance(self.environment, LongshellEnvironment):
            raise TypeError("LongshellVerifier verifies in a LongshellEnvironment alone")
        async with self.environment.fresh(self.task.instruction):
            return await super().verify()
