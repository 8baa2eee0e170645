"""Boxes that an engine runs: their first processes are at the other end of one stream each.

What is told here of exec, files and terminals is done by the box's first process, in the same code as in the boxes of
this machine's kernel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from components.errors import FaultCause, InfraFault
from components.sandbox.box import OPERATION_S, TIMEOUT_GRACE_S, VIEW_ENVIRONMENT, Box, Command, Life
from components.sandbox.contract import REPORT_BYTES, REPORT_FD, SECRET_FD, ExecResult, Left, Remains, SandboxSpec
from components.sandbox.docker import changes
from components.sandbox.docker.images import Image
from components.sandbox.docker.outlet import Outlet
from components.sandbox.docker.stream import BoxStream, RemoteLine
from components.sandbox.image import normal_path
from components.sandbox.zygote.changes import MOST_TOLD, doubtful, is_loaded, printable, told

if TYPE_CHECKING:
    from components.sandbox.docker.backend import DockerBackend

COPY_S = 600.0


@dataclass
class DockerLife(Life):
    """One running container.

    Attributes:
        most_bytes: it may hold on disk, beside its image; `held_bytes` it did when it was weighed last.
        curbed: that was too much, and programs of it were ended.
        moving: its files are being copied or saved, and none of its programs runs: it is not weighed.
    """

    name: str
    image: Image
    stream: BoxStream
    most_bytes: int
    held_bytes: int = 0
    curbed: bool = False
    moving: bool = False
    oom_seen: int = 0
    outlet: Outlet | None = None

    @contextmanager
    def moved(self) -> Iterator[None]:
        """For the time in which its first process, at work or stopped by the engine, hears nothing else."""
        self.moving = True
        try:
            yield
        finally:
            self.moving = False

    @property
    def exchange(self) -> BoxStream:
        return self.stream

    @property
    def image_env(self) -> Mapping[str, str]:
        return self.image.env

    @property
    def env(self) -> Mapping[str, str]:
        return {} if self.outlet is None else self.outlet.env

    async def run(self, command: Command) -> ExecResult:
        number = self.stream.next_id()
        reply = self.stream.expect(number)
        body = {
            **command.request(number),
            "limit": command.max_output_bytes,
            "merged": command.merge_stderr,
            "fed": command.stdin is not None,
            "secret": None if command.secret is None else command.secret.decode(),
            "secret_fd": SECRET_FD,
            "report_fd": REPORT_FD,
            "report_limit": REPORT_BYTES,
            "guarded": command.secret is not None,
        }
        self.stream.post(body, command.stdin)
        try:
            answer, blob = await self.stream.reply(reply, command.argv[0], command.timeout_s + TIMEOUT_GRACE_S)
        except OSError as error:
            return command.not_started(error)
        said: dict[int, bytes] = {}
        dropped: dict[int, int] = {}
        at = 0
        for place, size, missing in answer["parts"]:
            said[place], dropped[place] = blob[at : at + size], missing
            at += size
        late = bool(answer["timed_out"])
        oom, self.oom_seen = answer["oom_kills"] > self.oom_seen, answer["oom_kills"]
        flooded = dropped.pop(REPORT_FD, 0) > 0
        report = b"" if flooded else said.get(REPORT_FD, b"")  # one with a hole says what is not so
        code = None if late else int(answer["exit"])
        stderr = None if command.merge_stderr else said[2]
        return ExecResult(code, said[1], stderr, late, any(dropped.values()), oom, report, flooded)

    async def write(self, packed: bytes) -> None:
        await self.stream.request({"op": "put"}, packed, timeout_s=OPERATION_S)

    async def read(self, path: str, max_bytes: int) -> bytes:
        request = {"op": "get", "path": path, "limit": max_bytes}
        return (await self.stream.request(request, timeout_s=OPERATION_S))[1]

    async def open_line(self, request: dict[str, Any]) -> RemoteLine:
        line = self.stream.line(request["exit_id"])
        try:
            await self.stream.request({**request, "guarded": False}, timeout_s=OPERATION_S)
        except BaseException:
            line.close()
            raise
        return line


class DockerBox(Box[DockerLife]):
    """A started box."""

    def __init__(
        self,
        backend: DockerBackend,
        spec: SandboxSpec,
        life: DockerLife,
        *,
        extra_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(spec, life, name=life.name, isolation=backend.isolation, extra_environment=extra_environment)
        self._backend = backend

    async def fork_view(self) -> DockerView:
        said = await self._end()
        changed = changes.sort(await self._backend.changes(self._life))
        own = {*changed.present} - {*changed.removed} - {normal_path(path) for path in self._spec.files}
        doubted = doubtful([*said["doubtful"], *filter(is_loaded, own)])
        spec = replace(self._spec, network=self._spec.view_network)
        life = await self._backend.launch(spec, self._life.image)
        try:
            with self._life.moved(), life.moved():
                copied = await self._life.stream.copy_to(life.stream, changed, COPY_S)
                life.most_bytes += copied.size  # of the agent's work; its disk is for what the verifier writes
        except OSError as error:
            await self._backend.end(life)
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: its files cannot be written again: {error}") from error
        except BaseException:
            await asyncio.shield(self._backend.end(life))
            raise
        replaced = told(f"replaced {printable(path)}" for path in copied.left)
        reverted = [*said["changed"], *replaced, *changed.reverted][: 2 * MOST_TOLD]
        left = Left(tuple(reverted), tuple(doubted), tuple(said["ended"]))
        return DockerView(self._backend, self._spec, life, left)

    async def snapshot(self) -> str:
        await self._end()
        return await self._backend.save_snapshot(self._life)

    async def _renew(self, life: DockerLife) -> DockerLife:
        return await self._backend.start_life(self._spec, life.image)

    async def _finish(self, life: DockerLife) -> None:
        await self._backend.end(life)


class DockerView(DockerBox):
    """A fresh box over another's files; see the protocol `View`."""

    shell = "/bin/bash"

    def __init__(self, backend: DockerBackend, spec: SandboxSpec, life: DockerLife, left: Left) -> None:
        super().__init__(backend, spec, life, extra_environment=VIEW_ENVIRONMENT)
        self.left = left
        self._user = ""  # the verifier is root's, whoever the agent was
        self.networked = spec.view_network != "none"
        self._sealed_at: int | None = None

    async def seal(self, *paths: str, system: bool = False) -> None:
        folders = sorted(changes.TOLD_FOLDERS) if system else []
        request = {"op": "seal", "paths": list(paths), "systems": [f"/{name}" for name in folders]}
        try:
            said, _ = await self._life.stream.request(request, timeout_s=OPERATION_S)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{self.id}: not sealed: {error}") from error
        self._sealed_at = said["now"] if system else self._sealed_at

    async def finish(self, since: int | None) -> Remains:
        since = since if self._sealed_at is None else self._sealed_at
        said = await self._end(last=True, since=since, folders=sorted(changes.TOLD_FOLDERS))
        return Remains(tuple(said["ended"]), tuple(said["since"]), tuple(said["late"]))

    async def reset(self) -> None:
        raise ValueError("a view cannot be reset: fork another")
