"""What every sandbox backend offers: the values and protocols the rest of the system codes against.

Invariant: an infrastructure failure raises `InfraFault`; what a program in the box did is a value (`ExecResult`) or the
plain `OSError` of the box's own file system (no space, no such file). An agent that ends its own box, by taking all
its memory, raises `BoxSpent`, which a trial takes for the policy's doing; nothing else that it does is an `InfraFault`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from components.config.rollout import SandboxConfig
from components.sandbox.image import CopyStep, FileEntry, ImageSpec, RunStep, normal_path, steps_digest
from components.sandbox.zygote.changes import is_asked_for

OUTPUT_BYTES = 1 << 20
"""Default bound of a command's kept output: half from its start, half from its end."""
REPORT_BYTES = 8 << 20
GET_BYTES = 64 << 20
REPORT_FD, SECRET_FD = 3, 4
"""A command that is given a secret reads it, once, from one and reports on the other: neither has a name in the box."""
Network = Literal["none", "proxy"]
SYSTEM_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")


@dataclass(frozen=True)
class SandboxSpec:
    """A box to start: its limits, its image or files, its environment."""

    workdir: str = "/app"
    image: ImageSpec | None = None
    files: Mapping[str, FileEntry | bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    """Shell commands run once at start, after the image's own."""
    cpus: float = 1.0
    memory_mb: int = 512
    disk_mb: int = 256
    pids: int = 128
    network: Network = "none"
    view_network: Network = "none"
    """Of views of this box."""
    build_network: Network = "none"
    """Of the image's RUN commands, where the backend builds the image."""
    hosts: tuple[str, ...] = ()
    """Whom a network of `proxy` reaches; see `SandboxConfig.hosts`."""
    snapshot: str | None = None
    """What `Sandbox.snapshot` told: start there, with neither image steps nor files nor setup."""
    setup_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.workdir.startswith("/"):
            raise ValueError(f"workdir must be absolute, not {self.workdir!r}")

    @classmethod
    def within(
        cls,
        limits: SandboxConfig,
        *,
        image: ImageSpec | None = None,
        files: Mapping[str, FileEntry | bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SandboxSpec:
        """A spec under the configured limits, in the image's working directory."""
        return cls(
            workdir="/app" if image is None else image.workdir,
            image=image,
            files=dict(files or {}),
            env=dict(env or {}),
            cpus=limits.cpus,
            memory_mb=limits.memory_mb,
            disk_mb=limits.disk_mb,
            pids=limits.pids,
            network=limits.network,
            view_network=limits.verifier_network,
            build_network=limits.build_network,
            hosts=limits.hosts,
        )

    def steps(self) -> tuple[CopyStep | RunStep, ...]:
        """Everything that makes the started state, in order."""
        image_steps = () if self.image is None else self.image.steps
        files = {
            path: entry if isinstance(entry, FileEntry) else FileEntry(entry) for path, entry in self.files.items()
        }
        environment = self.environment()
        own: list[CopyStep | RunStep] = [CopyStep(files)] if files else []
        own += [RunStep(command, self.workdir, environment, 0) for command in self.setup]
        return (*image_steps, *own)

    def without_image_steps(self) -> SandboxSpec:
        """What is left to do over an image that has been built."""
        return self if self.image is None else replace(self, image=replace(self.image, steps=()))

    def without_steps(self) -> SandboxSpec:
        """What is left to do over a snapshot: nothing."""
        return replace(self.without_image_steps(), files={}, setup=())

    def environment(self) -> dict[str, str]:
        """The image's variables under the spec's own."""
        return {**({} if self.image is None else self.image.env), **self.env}

    def changes_system(self) -> bool:
        """Whether the started state differs from the bare system outside the folders an agent works in."""
        for step in self.steps():
            if isinstance(step, RunStep):
                return True
            if any(normal_path(path).split("/")[1] in SYSTEM_FOLDERS for path in step.files):
                return True
        return False

    def digest(self) -> str:
        """Names the started state: two specs with one digest may share a base."""
        return steps_digest(self.steps(), repr((self.workdir, self.disk_mb, self.snapshot)))


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `output` is what it wrote, streams merged unless `stderr` was asked apart."""

    exit_code: int | None
    """128 + signal for a killed one; None when it was killed at its timeout."""
    output: bytes
    stderr: bytes | None
    timed_out: bool
    truncated: bool
    oom: bool
    """Whether the kernel killed a process of the box for memory while the command ran."""
    report: bytes = b""
    """What it wrote to `REPORT_FD`, where it was given a secret; nothing when that was more than `REPORT_BYTES`."""
    report_flooded: bool = False
    """Whether it was more."""


@dataclass(frozen=True)
class Left:
    """What the agent's side left that is no part of its work. The lists are bounded, names are printable.

    Attributes:
        reverted: "changed /usr/bin/less", "planted /logs/verifier/reward.txt": paths that the view shows as a new box
            does.
        doubtful: paths in the home folder, which the view does have, that a verifier's set-up would load or run.
        ended: names of processes that still ran; not those that were asked for and not waited for.
    """

    reverted: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()

    def unasked(self, instruction: str) -> tuple[str, ...]:
        """Of the doubtful paths those that an instruction does not ask for."""
        return tuple(path for path in self.doubtful if not is_asked_for(path, instruction))


@dataclass(frozen=True)
class Remains:
    """What was found in a view when its programs were ended. Bounded and printable, as `Left` is.

    Attributes:
        ended: names of programs that still ran.
        changed: "changed /usr/bin/less": files of the system that were changed since then.
        late: "changed /logs/verifier/reward.txt": what was written to /logs after the last command had ended; also
            "replaced /logs/verifier", which is no folder any more.
    """

    ended: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    late: tuple[str, ...] = ()


class Terminal(Protocol):
    """A pseudo-terminal in a box with one persistent bash."""

    @property
    def alive(self) -> bool:
        """False once the shell has ended (the agent may type `exit`)."""
        ...

    async def send(self, keystrokes: str) -> None:
        """Type; to a dead terminal this does nothing."""
        ...

    async def settle(self, duration_s: float, *, at_prompt: bool) -> bool:
        """Wait; with `at_prompt` return True as soon as the shell waits for input with all output read."""
        ...

    async def new_output(self) -> str:
        """Text since the last call without control sequences; a full-screen program's rendered screen."""
        ...

    async def capture(self) -> tuple[str, ...]:
        """What tmux would capture: at most 2,000 lines that have scrolled off, then every row of the screen.

        Takes what `new_output` would tell; what that has told is not in a capture any more.
        """
        ...

    async def screen(self) -> str:
        """The rendered screen."""
        ...

    async def close(self) -> None:
        """Hang up. Idempotent."""
        ...


class Sandbox(Protocol):
    """A started box."""

    @property
    def id(self) -> str:
        """Unique on this machine."""
        ...

    @property
    def isolation(self) -> str:
        """`namespace/root`, `namespace/unprivileged`, `docker` or `process`: recorded with every trial."""
        ...

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
        """Run a command to its end or its timeout (then it and everything it started is killed).

        `user` is a name or a number, with `:group` or without; None is whom the image names, in a view root.
        `secret`, at most a pipe's 4 KiB, is what it can read from `SECRET_FD`; whoever reads first has it.
        """
        ...

    async def put(self, files: Mapping[str, FileEntry | bytes]) -> None:
        """Write files; each appears whole and replaces what had its name. OSError is the box's own."""
        ...

    async def put_tree(self, source: Path, target: str) -> None:
        """Copy a host folder's contents; symlinks stay symlinks and are never followed."""
        ...

    async def get(self, path: str, *, max_bytes: int = GET_BYTES) -> bytes:
        """Read a regular file; FileNotFoundError and other OSErrors are the box's own."""
        ...

    async def terminal(self, *, rows: int, columns: int, echo: bool, prompt: str = "$ ") -> Terminal:
        """Open a terminal, ready at its first prompt. A shell whose input is shown (`echo`) edits its lines."""
        ...

    async def end_processes(self) -> None:
        """Kill every process in the box."""
        ...

    async def fork_view(self) -> View:
        """End the box's processes, then start a fresh box over its files: its own system, not the agent's."""
        ...

    async def snapshot(self) -> str:
        """End the box's processes and save its files, without those of its image; the name for `SandboxSpec.snapshot`.

        The box goes on. What was saved outlives it and its backend, until `SandboxBackend.forget`.
        """
        ...

    async def reset(self) -> None:
        """Back to the state after start."""
        ...

    async def stop(self) -> None:
        """End the box and everything in it. Idempotent."""
        ...


class View(Sandbox, Protocol):
    """A fresh box over another's files, for who must not rely on what ran there."""

    @property
    def left(self) -> Left:
        """What is not here because it was the agent's."""
        ...

    @property
    def shell(self) -> str:
        """A bash that, where the isolation is good for it, no program of the view can look into."""
        ...

    @property
    def networked(self) -> bool:
        """Whether its programs reach hosts: they may be there to install some."""
        ...

    async def seal(self, *paths: str, system: bool = False) -> None:
        """Make folders read-only for everything in the view, and with `system` its system too (once).

        `process` isolation cannot: look whether it held. On an engine nothing can be added to a sealed system or taken
        from it, and a file that was written to is told by `finish`.
        """
        ...

    async def finish(self, since: int | None) -> Remains:
        """End every program; tells what still ran, what that wrote to /logs, and what was changed of the system.

        The last is what was changed after it was sealed, where it could be; of a system that was not, what was changed
        after `since`, in nanoseconds of the view's own time, and nothing where that is None.
        """
        ...


class SandboxBackend(Protocol):
    """Where boxes come from."""

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> str: ...

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """A started box; InfraFault when it cannot be had."""
        ...

    @property
    def counts(self) -> Mapping[str, float]:
        """What kept boxes from being started at once, since the backend was opened; the series `sandbox/<name>`."""
        ...

    async def forget(self, snapshot: str) -> None:
        """Remove what `Sandbox.snapshot` saved; no box that started from it may live. Idempotent."""
        ...

    async def close(self) -> None:
        """Stop every box. Idempotent."""
        ...
