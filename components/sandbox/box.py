"""The manager's side of one box: the `Sandbox` that trials use.

A Box is an identity; the living thing behind it (its life: a name, a channel to its first process) is replaced by
`reset`. What the box's programs do wrong is a value or an OSError; only the loss of the box itself is an InfraFault.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from components.errors import FaultCause, InfraFault
from components.sandbox import proxy
from components.sandbox.capture import PipeCapture
from components.sandbox.channel import Channel
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
from components.sandbox.image import PATH, CopyStep, FileEntry, RunStep, normal_path, plain_user, read_tree
from components.sandbox.line import LocalLine
from components.sandbox.proxy import BoxProxy
from components.sandbox.store import ImageStore, Stack
from components.sandbox.terminal import PtyTerminal, shell_environment
from components.sandbox.zygote import userland, wire

if TYPE_CHECKING:
    from components.sandbox.backend import ZygoteBackend

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
VIEW_ENVIRONMENT = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""In a view /root is the agent's: Python must not load what it left in its user site."""
SHELL = ("bash", "--norc", "--noprofile")
UNSHOWN = ("--noediting",)
"""A line editor would show what it edits."""


@dataclass
class Life:
    """One living box: its name in the zygote, the channel to its first process, and its end."""

    name: str
    channel: Channel
    gone: asyncio.Future[None]
    stack: Stack
    proxy: BoxProxy | None = None

    @property
    def env(self) -> dict[str, str]:
        """Variables that its programs need to find their way out."""
        return {} if self.proxy is None else proxy.environment()


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
    out = PipeCapture(max_output_bytes)
    err = None if merge_stderr else PipeCapture(max_output_bytes)
    channel = None if secret is None else PipeCapture(REPORT_BYTES)
    places = {1: out.write, 2: out.write if err is None else err.write}
    if stdin is not None:
        places[0] = wire.memory_file(stdin)
    if secret is not None and channel is not None:
        places |= {REPORT_FD: channel.write, SECRET_FD: _read_once(secret)}
    number = life.channel.next_id()
    reply = life.channel.expect(number)
    code: int | None
    failure, late = b"", False
    try:
        try:
            body = {
                "op": "exec",
                "id": number,
                "argv": list(argv),
                "env": dict(env),
                "cwd": cwd,
                "timeout_s": timeout_s,
                "places": list(places),
                "user": user,
            }
            life.channel.post(body, list(places.values()))
        finally:
            for fd in {*places.values()}:
                os.close(fd)
        answer, _ = await life.channel.reply(reply, argv[0], timeout_s + TIMEOUT_GRACE_S)
        late = bool(answer["timed_out"])
        code = None if late else int(answer["exit"])
    except OSError as error:  # the program could not be started: the box's own fault, told as a shell tells it
        code = 127 if error.errno == errno.ENOENT else 126
        failure = f"{argv[0]}: {error.strerror or error}\n".encode()
    finally:
        output = out.finish()
        stderr = None if err is None else err.finish()
        report = b"" if channel is None else channel.finish()
        if channel is not None and channel.kept.dropped:  # a report with a hole says what is not so
            report = b""
    dropped = out.kept.dropped + (0 if err is None else err.kept.dropped)
    if stderr is None:
        output += failure
    else:
        stderr += failure
    return ExecResult(code, output, stderr, late, dropped > 0, oom=False, report=report)


def _read_once(secret: bytes) -> int:
    """The reading end of a pipe that holds a secret: what has been read from it is nowhere any more."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(writing, secret)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    os.set_blocking(reading, True)
    return reading


async def write_files(life: Life, files: Mapping[str, FileEntry | bytes]) -> None:
    """Write files into a living box in one message."""
    entries = []
    for path, given in files.items():
        entry = given if isinstance(given, FileEntry) else FileEntry(given)
        entries.append((normal_path(path), entry.kind, entry.mode, entry.name, entry.content))
    blob = wire.memory_file(wire.pack_files(entries))
    try:
        await life.channel.request({"op": "put"}, [blob], timeout_s=OPERATION_S)
    finally:
        os.close(blob)


async def save(life: Life, store: ImageStore, key: str, below: Stack, *, shift: int | None) -> Stack:
    """Save the files of a box whose programs have ended; to be called while `making` the layer."""
    said, folders = await life.channel.request({"op": "layers"}, timeout_s=OPERATION_S)
    try:
        uppers = dict(zip(said["names"], folders, strict=True))
        return await asyncio.to_thread(store.save, key, below, uppers, shift=shift)
    finally:
        for folder in folders:
            os.close(folder)


async def furnish(life: Life, spec: SandboxSpec) -> None:
    """Bring a new box to its started state; what fails here is the image's fault."""
    try:
        await write_files(life, {spec.workdir: FileEntry(b"", 0o755, "directory")})
        for step in spec.steps():
            if isinstance(step, CopyStep):
                await write_files(life, step.files)
            else:
                await _run_step(life, step, spec.setup_timeout_s)
        await life.channel.request({"op": "furnished"}, timeout_s=OPERATION_S)
    except OSError as error:
        raise InfraFault(FaultCause.IMAGE, f"a file of the image cannot be written: {error}") from error


async def _run_step(life: Life, step: RunStep, timeout_s: float) -> None:
    env = {**BASE_ENVIRONMENT, **life.env, **({} if life.stack.base is None else life.stack.base.env), **step.env}
    argv = ["/bin/sh", "-c", step.command]
    result = await run(life, argv, env=env, cwd=step.workdir, timeout_s=timeout_s, user=step.user)
    if result.exit_code != 0:
        ending = "timed out" if result.timed_out else f"exited {result.exit_code}"
        where = f"Dockerfile line {step.line}" if step.line else "setup"
        tail = result.output[-500:].decode(errors="replace")
        raise InfraFault(FaultCause.IMAGE, f"{where}: RUN {step.command[:200]} {ending}: {tail}")


class Box:
    """A started box; see the protocol `Sandbox`."""

    def __init__(
        self,
        backend: ZygoteBackend,
        spec: SandboxSpec,
        life: Life,
        *,
        base: str | None = None,
        release: Callable[[], None] = lambda: None,
        extra_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._life = life
        self._base = base
        self._release = release
        self._stopped = False
        self._terminals: list[PtyTerminal] = []
        self._oom_seen = 0
        image = {} if life.stack.base is None else life.stack.base.env
        self._env = {**BASE_ENVIRONMENT, **image, **extra_environment, **spec.environment()}
        self._user = "" if spec.image is None else spec.image.user
        self.id = f"{backend.lease}.{life.name}"

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
        result = await run(
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
        kills = self._backend.oom_kills(self._life.name)
        oom, self._oom_seen = kills > self._oom_seen, kills
        if not oom:
            return result
        return replace(result, oom=True)

    async def put(self, files: Mapping[str, FileEntry | bytes]) -> None:
        await write_files(self._life, files)

    async def put_tree(self, source: Path, target: str) -> None:
        entries = await asyncio.to_thread(read_tree, source, target)
        await write_files(self._life, {normal_path(target): FileEntry(b"", 0o755, "directory"), **entries})

    async def get(self, path: str, *, max_bytes: int = GET_BYTES) -> bytes:
        blob = os.memfd_create("longshell")
        try:
            request = {"op": "get", "path": normal_path(path), "limit": max_bytes}
            await self._life.channel.request(request, [blob], timeout_s=OPERATION_S)
            return wire.read_file(blob)
        finally:
            os.close(blob)

    async def terminal(self, *, rows: int, columns: int, echo: bool, prompt: str = "$ ") -> PtyTerminal:
        channel = self._life.channel
        key = secrets.token_hex(6)
        exit_id = channel.next_id()
        exited = channel.expect(exit_id)
        body = {
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
            _, (master,) = await channel.request(body, timeout_s=OPERATION_S)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: no terminal: {error}") from error
        terminal = PtyTerminal(LocalLine(master), exited, key, rows=rows, columns=columns, echo=echo)
        self._terminals.append(terminal)
        if not await terminal.settle(FIRST_PROMPT_S, at_prompt=True):
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: the shell showed no prompt in {FIRST_PROMPT_S:g} s")
        return terminal

    async def end_processes(self) -> None:
        await self._end()

    async def _end(self) -> Left:
        try:
            said, _ = await self._life.channel.request({"op": "end"}, timeout_s=OPERATION_S)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: {error}") from error
        return Left(tuple(said["changed"]), tuple(said["doubtful"]), tuple(said["ended"]))

    async def fork_view(self) -> View:
        left = await self._end()
        spec = replace(self._spec, network=self._spec.view_network)
        life = await self._backend.launch(spec, self._life.stack, system=self._base, over=self._life.name)
        return View(self._backend, self._spec, life, left, base=self._base)

    async def snapshot(self) -> str:
        await self._end()
        return await self._backend.save_snapshot(self._life, self._base)

    async def reset(self) -> None:
        await self._close_terminals()
        old = self._life
        fresh = asyncio.ensure_future(self._backend.start_life(self._spec, old.stack, self._base))
        try:
            await self._backend.end(old)
        finally:  # whether the old one could be ended or not, the new one is this box's to stop
            self._life = await fresh
        self._oom_seen = 0

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._release()
        await self._close_terminals()
        await asyncio.shield(self._backend.end(self._life))

    async def _close_terminals(self) -> None:
        for terminal in self._terminals:
            await terminal.close()
        self._terminals.clear()


class View(Box):
    """A fresh box over another's files; see the protocol `View`."""

    def __init__(
        self, backend: ZygoteBackend, spec: SandboxSpec, life: Life, left: Left, *, base: str | None = None
    ) -> None:
        super().__init__(backend, spec, life, base=base, extra_environment=VIEW_ENVIRONMENT)
        self.left = left
        self._user = ""  # the verifier is root's, whoever the agent was
        self.shell = userland.VIEW_SHELL if backend.isolation == "namespace/root" else "/bin/bash"

    async def seal(self, *paths: str) -> None:
        try:
            await self._backend.seal(self._life, paths)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: {error}") from error

    async def reset(self) -> None:
        raise ValueError("a view cannot be reset: fork another")
