"""One box that an engine runs: the `Sandbox` that trials use, and the `View` that verifiers do.

A DockerBox is an identity; the container behind it (its life) is replaced by `reset`. What is told here of exec, files
and terminals is done by the box's first process, over one stream, in the same code as in the namespace backend.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from components.errors import FaultCause, InfraFault
from components.sandbox.box import (
    BASE_ENVIRONMENT,
    FIRST_PROMPT_S,
    OPERATION_S,
    SHELL,
    TIMEOUT_GRACE_S,
    UNSHOWN,
    VIEW_ENVIRONMENT,
)
from components.sandbox.contract import (
    GET_BYTES,
    OUTPUT_BYTES,
    REPORT_BYTES,
    REPORT_FD,
    SECRET_FD,
    ExecResult,
    Left,
    SandboxSpec,
)
from components.sandbox.docker import changes
from components.sandbox.docker.images import Image
from components.sandbox.docker.outlet import Outlet
from components.sandbox.docker.stream import BoxStream
from components.sandbox.image import CopyStep, FileEntry, RunStep, normal_path, plain_user, read_tree
from components.sandbox.terminal import PtyTerminal, shell_environment
from components.sandbox.zygote import wire
from components.sandbox.zygote.changes import AT_HOME, HOME, MOST_TOLD

if TYPE_CHECKING:
    from components.sandbox.docker.backend import DockerBackend

COPY_S = 600.0


@dataclass
class Life:
    """One running container."""

    name: str
    image: Image
    stream: BoxStream
    oom_seen: int = 0
    outlet: Outlet | None = None

    @property
    def env(self) -> dict[str, str]:
        """Variables that its programs need to find their way out."""
        return {} if self.outlet is None else self.outlet.env


async def run(
    life: Life,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    timeout_s: float,
    stdin: bytes | None = None,
    max_output_bytes: int = OUTPUT_BYTES,
    merge_stderr: bool = True,
    secret: bytes | None = None,
    user: str = "",
) -> ExecResult:
    """Run one command in a living box."""
    stream = life.stream
    number = stream.next_id()
    reply = stream.expect(number)
    body = {
        "op": "exec",
        "id": number,
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "timeout_s": timeout_s,
        "limit": max_output_bytes,
        "merged": merge_stderr,
        "fed": stdin is not None,
        "secret": None if secret is None else secret.decode(),
        "secret_fd": SECRET_FD,
        "report_fd": REPORT_FD,
        "report_limit": REPORT_BYTES,
        "guarded": secret is not None,
        "user": user,
    }
    stream.post(body, stdin or b"")
    try:
        answer, blob = await stream.reply(reply, argv[0], timeout_s + TIMEOUT_GRACE_S)
    except OSError as error:  # the program could not be started: the box's own fault, told as a shell tells it
        code = 127 if error.errno == errno.ENOENT else 126
        failure = f"{argv[0]}: {error.strerror or error}\n".encode()
        output, stderr = (failure, None) if merge_stderr else (b"", failure)
        return ExecResult(code, output, stderr, timed_out=False, truncated=False, oom=False)
    said: dict[int, bytes] = {}
    dropped: dict[int, int] = {}
    at = 0
    for place, size, missing in answer["parts"]:
        said[place], dropped[place] = blob[at : at + size], missing
        at += size
    late = bool(answer["timed_out"])
    oom, life.oom_seen = answer["oom_kills"] > life.oom_seen, answer["oom_kills"]
    report = b"" if dropped.pop(REPORT_FD, 0) else said.get(REPORT_FD, b"")  # one with a hole says what is not so
    code_ = None if late else int(answer["exit"])
    return ExecResult(code_, said[1], None if merge_stderr else said[2], late, any(dropped.values()), oom, report)


async def write_files(life: Life, files: Mapping[str, FileEntry | bytes]) -> None:
    """Write files into a living box in one message."""
    entries = []
    for path, given in files.items():
        entry = given if isinstance(given, FileEntry) else FileEntry(given)
        entries.append((normal_path(path), entry.kind, entry.mode, entry.name, entry.content))
    await life.stream.request({"op": "put"}, wire.pack_files(entries), timeout_s=OPERATION_S)


async def furnish(life: Life, spec: SandboxSpec) -> None:
    """Bring a container of a task's image to the started state; what fails here is the image's fault."""
    try:
        await write_files(life, {spec.workdir: FileEntry(b"", 0o755, "directory")})
        for step in spec.steps():
            if isinstance(step, CopyStep):
                await write_files(life, step.files)
            else:
                await _set_up(life, step, spec.setup_timeout_s)
        await life.stream.request({"op": "furnished"}, timeout_s=OPERATION_S)
    except OSError as error:
        raise InfraFault(FaultCause.IMAGE, f"a file of the image cannot be written: {error}") from error


async def _set_up(life: Life, step: RunStep, timeout_s: float) -> None:
    env = {**BASE_ENVIRONMENT, **life.env, **life.image.env, **step.env}
    result = await run(life, ["/bin/sh", "-c", step.command], env=env, cwd=step.workdir, timeout_s=timeout_s)
    if result.exit_code != 0:
        ending = "timed out" if result.timed_out else f"exited {result.exit_code}"
        tail = result.output[-500:].decode(errors="replace")
        raise InfraFault(FaultCause.IMAGE, f"setup: RUN {step.command[:200]} {ending}: {tail}")


class DockerBox:
    """A started box; see the protocol `Sandbox`."""

    def __init__(
        self,
        backend: DockerBackend,
        spec: SandboxSpec,
        life: Life,
        *,
        extra_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._life = life
        self._stopped = False
        self._terminals: list[PtyTerminal] = []
        self._env = {**BASE_ENVIRONMENT, **life.image.env, **extra_environment, **spec.environment()}
        self._user = "" if spec.image is None else spec.image.user
        self.id = life.name

    @property
    def isolation(self) -> str:
        """How strong the box's walls are."""
        return self._backend.isolation

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
        return await run(
            self._life,
            argv,
            env={**self._life.env, **self._env, **(env or {})},
            cwd=self._spec.workdir if cwd is None else cwd,
            timeout_s=timeout_s,
            stdin=stdin,
            max_output_bytes=max_output_bytes,
            merge_stderr=merge_stderr,
            secret=secret,
            user=self._user if user is None else plain_user(user),
        )

    async def put(self, files: Mapping[str, FileEntry | bytes]) -> None:
        await write_files(self._life, files)

    async def put_tree(self, source: Path, target: str) -> None:
        entries = await asyncio.to_thread(read_tree, source, target)
        await write_files(self._life, {normal_path(target): FileEntry(b"", 0o755, "directory"), **entries})

    async def get(self, path: str, *, max_bytes: int = GET_BYTES) -> bytes:
        request = {"op": "get", "path": normal_path(path), "limit": max_bytes}
        return (await self._life.stream.request(request, timeout_s=OPERATION_S))[1]

    async def terminal(self, *, rows: int, columns: int, echo: bool, prompt: str = "$ ") -> PtyTerminal:
        stream = self._life.stream
        key = secrets.token_hex(6)
        exit_id = stream.next_id()
        exited = stream.expect(exit_id)
        terminal = PtyTerminal(stream.line(exit_id), exited, key, rows=rows, columns=columns, echo=echo)
        body = {
            "op": "terminal",
            "exit_id": exit_id,
            "argv": [*SHELL, *(() if echo else UNSHOWN)],
            "env": {**self._life.env, **self._env, **shell_environment(key, prompt)},
            "cwd": self._spec.workdir,
            "rows": rows,
            "columns": columns,
            "echo": echo,
            "guarded": False,
            "user": self._user,
        }
        try:
            await stream.request(body, timeout_s=OPERATION_S)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: no terminal: {error}") from error
        self._terminals.append(terminal)
        if not await terminal.settle(FIRST_PROMPT_S, at_prompt=True):
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: the shell showed no prompt in {FIRST_PROMPT_S:g} s")
        return terminal

    async def end_processes(self) -> None:
        await self._end()

    async def _end(self) -> dict[str, Any]:
        try:
            return (await self._life.stream.request({"op": "end"}, timeout_s=OPERATION_S))[0]
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: {error}") from error

    async def fork_view(self) -> DockerView:
        said = await self._end()
        changed = changes.sort(await self._backend.changes(self._life))
        own = {*changed.present} - {*changed.removed} - {normal_path(path) for path in self._spec.files}
        doubtful = sorted({*said["doubtful"], *(own & {f"/{HOME}/{name}" for name in AT_HOME})})
        reverted = [*said["changed"], *changed.reverted][: 2 * MOST_TOLD]
        left = Left(tuple(reverted), tuple(doubtful), tuple(said["ended"]))
        spec = replace(self._spec, network=self._spec.view_network)
        life = await self._backend.launch(spec, self._life.image)
        try:
            await self._life.stream.copy_to(life.stream, changed.present, changed.removed, COPY_S)
        except OSError as error:
            await self._backend.end(life)
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: its files cannot be written again: {error}") from error
        except BaseException:
            await asyncio.shield(self._backend.end(life))
            raise
        return DockerView(self._backend, self._spec, life, left)

    async def snapshot(self) -> str:
        await self._end()
        return await self._backend.save_snapshot(self._life)

    async def reset(self) -> None:
        await self._close_terminals()
        old = self._life
        fresh = asyncio.ensure_future(self._backend.start_life(self._spec, old.image))
        try:
            await self._backend.end(old)
        finally:  # whether the old one could be removed or not, the new one is this box's to stop
            self._life = await fresh

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self._close_terminals()
        await asyncio.shield(self._backend.end(self._life))

    async def _close_terminals(self) -> None:
        for terminal in self._terminals:
            await terminal.close()
        self._terminals.clear()


class DockerView(DockerBox):
    """A fresh box over another's files; see the protocol `View`."""

    shell = "/bin/bash"

    def __init__(self, backend: DockerBackend, spec: SandboxSpec, life: Life, left: Left) -> None:
        super().__init__(backend, spec, life, extra_environment=VIEW_ENVIRONMENT)
        self.left = left
        self._user = ""  # the verifier is root's, whoever the agent was

    async def seal(self, *paths: str) -> None:
        try:
            await self._life.stream.request({"op": "seal", "paths": list(paths)}, timeout_s=OPERATION_S)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: not sealed: {error}") from error

    async def reset(self) -> None:
        raise ValueError("a view cannot be reset: fork another")
