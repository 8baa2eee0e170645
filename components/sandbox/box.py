"""The manager's side of one box, whatever runs it: the `Sandbox` that trials use.

A Box is an identity; the living thing behind it (its life: a name, and an exchange with its first process) is replaced
by `reset`. What the box's programs do wrong is a value or an OSError; only the loss of the box itself is an InfraFault.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from components.errors import BoxSpent, FaultCause, InfraFault
from components.sandbox.contract import GET_BYTES, OUTPUT_BYTES, ExecResult, SandboxSpec, View
from components.sandbox.exchange import Exchange
from components.sandbox.image import PATH, CopyStep, FileEntry, RunStep, normal_path, plain_user, read_tree
from components.sandbox.line import Line
from components.sandbox.terminal import PtyTerminal, shell_environment
from components.sandbox.zygote import wire

OPERATION_S = 60.0
"""A file operation in a box whose CPU share is used up by its programs still ends within this."""
TIMEOUT_GRACE_S = 15.0
"""The box enforces a command's timeout; one that does not answer so long after it is given up."""
FIRST_PROMPT_S = 20.0
BASE_ENVIRONMENT = {
    "PATH": PATH,
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
VIEW_ENVIRONMENT = {
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_CACHE_DIR": "/run/pip",
    "UV_CACHE_DIR": "/run/uv/cache",
    "UV_PYTHON_INSTALL_DIR": "/run/uv/python",
    "UV_TOOL_DIR": "/run/uv/tools",
    "npm_config_cache": "/run/npm",
}
"""In a view /root is the agent's: Python must not load what it left in its user site, nor tools that install what a
verifier runs what it left of their caches and Pythons. /run is a new box's."""
SHELL = ("bash", "--norc", "--noprofile")
UNSHOWN = ("--noediting",)
"""A line editor would show what it edits."""


@dataclass(frozen=True)
class Command:
    """What `Sandbox.exec` was asked for."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    timeout_s: float
    stdin: bytes | None = None
    max_output_bytes: int = OUTPUT_BYTES
    merge_stderr: bool = True
    secret: bytes | None = None
    user: str = ""

    def request(self, number: int) -> dict[str, Any]:
        """As the box's first process is told."""
        return {
            "op": "exec",
            "id": number,
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "timeout_s": self.timeout_s,
            "user": self.user,
        }

    def not_started(self, error: OSError) -> ExecResult:
        """The program could not be started: the box's own fault, told as a shell tells it."""
        code = 127 if error.errno == errno.ENOENT else 126
        said = f"{self.argv[0]}: {error.strerror or error}\n".encode()
        output, stderr = (said, None) if self.merge_stderr else (b"", said)
        return ExecResult(code, output, stderr, timed_out=False, truncated=False, oom=False)


class Life(ABC):
    """One living box."""

    name: str

    @property
    @abstractmethod
    def exchange(self) -> Exchange[Any, Any]:
        """With its first process."""

    @property
    @abstractmethod
    def image_env(self) -> Mapping[str, str]:
        """Variables that its image sets."""

    @property
    @abstractmethod
    def env(self) -> Mapping[str, str]:
        """Variables that its programs need to find their way out."""

    @abstractmethod
    async def run(self, command: Command) -> ExecResult:
        """Run one command."""

    @abstractmethod
    async def write(self, packed: bytes) -> None:
        """Write files, in one message."""

    @abstractmethod
    async def read(self, path: str, max_bytes: int) -> bytes:
        """Read a regular file."""

    @abstractmethod
    async def open_line(self, request: dict[str, Any]) -> Line:
        """Start a shell on a terminal; its line."""

    async def put(self, files: Mapping[str, FileEntry | bytes]) -> None:
        """Write files in one message."""
        entries = []
        for path, given in files.items():
            entry = given if isinstance(given, FileEntry) else FileEntry(given)
            entries.append((normal_path(path), entry.kind, entry.mode, entry.name, entry.content))
        await self.write(wire.pack_files(entries))


async def furnish(life: Life, spec: SandboxSpec) -> None:
    """Bring a new box to its started state; what fails here is the image's fault."""
    try:
        await life.put({spec.workdir: FileEntry(b"", 0o755, "directory")})
        for step in spec.steps():
            if isinstance(step, CopyStep):
                await life.put(step.files)
            else:
                await _run_step(life, step, spec.setup_timeout_s)
        await life.exchange.request({"op": "furnished"}, timeout_s=OPERATION_S)
    except OSError as error:
        raise InfraFault(FaultCause.IMAGE, f"a file of the image cannot be written: {error}") from error
    except BoxSpent as spent:
        raise InfraFault(FaultCause.IMAGE, f"the image's set-up: {spent.detail}") from spent


async def _run_step(life: Life, step: RunStep, timeout_s: float) -> None:
    env = {**BASE_ENVIRONMENT, **life.env, **life.image_env, **step.env}
    result = await life.run(Command(["/bin/sh", "-c", step.command], env, step.workdir, timeout_s, user=step.user))
    if result.exit_code != 0:
        ending = "timed out" if result.timed_out else f"exited {result.exit_code}"
        where = f"Dockerfile line {step.line}" if step.line else "setup"
        tail = result.output[-500:].decode(errors="replace")
        raise InfraFault(FaultCause.IMAGE, f"{where}: RUN {step.command[:200]} {ending}: {tail}")


Living = TypeVar("Living", bound=Life)


class Box(ABC, Generic[Living]):
    """A started box; see the protocol `Sandbox`."""

    def __init__(
        self,
        spec: SandboxSpec,
        life: Living,
        *,
        name: str,
        isolation: str,
        extra_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._spec = spec
        self._life = life
        self._stopped = False
        self._terminals: list[PtyTerminal] = []
        self._env = {**BASE_ENVIRONMENT, **life.image_env, **extra_environment, **spec.environment()}
        self._user = "" if spec.image is None else spec.image.user
        self.id = name
        self.isolation = isolation

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        max_output_bytes: int = OUTPUT_BYTES,
        merge_stderr: bool = True,
        secret: bytes | None = None,
        user: str | None = None,
    ) -> ExecResult:
        command = Command(
            argv,
            {**self._life.env, **self._env, **(env or {})},
            self._spec.workdir if cwd is None else cwd,
            timeout_s,
            stdin,
            max_output_bytes,
            merge_stderr,
            secret,
            self._user if user is None else plain_user(user),
        )
        return await self._life.run(command)

    async def put(self, files: Mapping[str, FileEntry | bytes]) -> None:
        await self._life.put(files)

    async def put_tree(self, source: Path, target: str) -> None:
        entries = await asyncio.to_thread(read_tree, source, target)
        await self._life.put({normal_path(target): FileEntry(b"", 0o755, "directory"), **entries})

    async def get(self, path: str, *, max_bytes: int = GET_BYTES) -> bytes:
        return await self._life.read(normal_path(path), max_bytes)

    async def terminal(self, *, rows: int, columns: int, echo: bool, prompt: str = "$ ") -> PtyTerminal:
        key = secrets.token_hex(6)
        exit_id = self._life.exchange.next_id()
        exited = self._life.exchange.expect(exit_id)
        request = {
            "op": "terminal",
            "exit_id": exit_id,
            "argv": [*SHELL, *(() if echo else UNSHOWN)],
            "env": {**self._life.env, **self._env, **shell_environment(key, prompt)},
            "cwd": self._spec.workdir,
            "rows": rows,
            "columns": columns,
            "echo": echo,
            "user": self._user,
        }
        try:
            line = await self._life.open_line(request)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: no terminal: {error}") from error
        terminal = PtyTerminal(line, exited, key, rows=rows, columns=columns, echo=echo)
        self._terminals.append(terminal)
        if not await terminal.settle(FIRST_PROMPT_S, at_prompt=True):
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: the shell showed no prompt in {FIRST_PROMPT_S:g} s")
        return terminal

    async def end_processes(self) -> None:
        await self._end()

    async def _end(self, **asked: Any) -> dict[str, Any]:
        """End every process; what the box's first process tells of that."""
        try:
            return (await self._life.exchange.request({"op": "end", **asked}, timeout_s=OPERATION_S))[0]
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: {error}") from error

    @abstractmethod
    async def fork_view(self) -> View: ...

    @abstractmethod
    async def snapshot(self) -> str: ...

    @abstractmethod
    async def _renew(self, life: Living) -> Living:
        """A new life in the started state that this one had."""

    @abstractmethod
    async def _finish(self, life: Living) -> None:
        """End a life and wait until nothing of it is left."""

    async def reset(self) -> None:
        await self._close_terminals()
        old = self._life
        fresh = asyncio.ensure_future(self._renew(old))
        try:
            await self._finish(old)
        finally:  # whether the old one could be ended or not, the new one is this box's to stop
            self._life = await fresh

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self._close_terminals()
        await asyncio.shield(self._finish(self._life))

    async def _close_terminals(self) -> None:
        for terminal in self._terminals:
            await terminal.close()
        self._terminals.clear()
