"""Boxes on this machine: the manager's side of a zygote, and the choice of the strongest isolation that works here.

Invariant: whatever this backend makes has an owner on disk before it exists, and ends with this process: boxes and
mounts because the zygote sees its socket close, control groups and folders because the zygote removes them or, were it
killed too, because the next `open_backend` sweeps what ownerless leases left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.config.rollout import SandboxConfig
from components.errors import ConfigError, FaultCause, InfraFault
from components.sandbox import leases
from components.sandbox.box import Box, Life, furnish
from components.sandbox.channel import Channel, outlast
from components.sandbox.contract import SandboxBackend, SandboxSpec
from components.sandbox.zygote import cgroups, wire

log = logging.getLogger(__name__)

FIRST_UID = 1_000_000
UID_COUNT = 65_536
"""A range no user of the host has: a process that left its box would be nobody."""
OPEN_S = 30.0
START_S = 60.0
END_S = 60.0
"""64 boxes ended at once take 0.1 s, with 64 busy processes beside them 2.4 s: all boxes share the weight of one."""
BASES = 32
"""Started states kept as bases though no living box uses them (each holds its own files in memory)."""
ISOLATIONS = {
    "auto": ("namespace/root", "namespace/unprivileged"),
    "namespace": ("namespace/root", "namespace/unprivileged"),
    "process": ("process",),
}
ADVICE = (
    "Run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces"
    " > 0, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; in a container: seccomp=unconfined or "
    "SYS_ADMIN). For trusted tasks only: sandbox.backend=process with sandbox.allow_unisolated=true, which has "
    "no isolation at all."
)
LAUNCHER = "import sys; sys.path.append(sys.argv[1]); from zygote.main import main; main(int(sys.argv[2]))"


@dataclass
class Base:
    """A started state that boxes are laid over. Its box lives while any of them does: their views need it."""

    life: asyncio.Task[Life]
    users: int = 0

    @property
    def failed(self) -> bool:
        """Whether it cannot be used (any more)."""
        if not self.life.done():
            return False
        return (
            self.life.cancelled() or self.life.exception() is not None or self.life.result().channel.fault is not None
        )


class ZygoteBackend:
    """Starts boxes through one zygote."""

    def __init__(self, isolation: str, state_dir: Path, lease: str) -> None:
        self.isolation = isolation
        self.lease = lease
        self.name = isolation.partition("/")[0]
        self._state_dir = state_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lives: dict[str, Life] = {}
        self._bases: dict[str, Base] = {}
        self._count = 0
        self._hierarchies: cgroups.Hierarchies | None = None

    @classmethod
    async def open(
        cls, isolation: str, state_dir: Path, *, idmap: bool = True, become_uid: int | None = None
    ) -> ZygoteBackend:
        """Start a zygote; InfraFault tells what is missing. `become_uid` drops root first (for tests of that path)."""
        owner = leases.current_owner()
        backend = cls(isolation, state_dir, f"{owner.pid}-{secrets.token_hex(4)}")
        leases.record(state_dir / "leases", backend.lease, owner)
        try:
            await backend._open(idmap, become_uid)
        except BaseException:
            await backend.close()
            raise
        return backend

    async def _open(self, idmap: bool, become_uid: int | None) -> None:
        staging = self._state_dir / "boxes" / self.lease
        staging.mkdir(parents=True, mode=0o755)
        if become_uid is not None:
            os.chown(staging, become_uid, become_uid)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = start_zygote(theirs, self._state_dir / "zygote.log")
        theirs.close()
        settings = {
            "isolation": self.isolation,
            "staging": str(staging),
            "lease": self.lease,
            "first_uid": FIRST_UID,
            "uid_count": UID_COUNT,
            "idmap": idmap,
            "become_uid": become_uid,
            "manager_pid": os.getpid(),
        }
        wire.send(ours, settings)
        report = await asyncio.wait_for(asyncio.to_thread(wire.receive, ours), OPEN_S)
        self._channel = Channel(ours, "the zygote", self._on_event, self._lose_all)
        body: dict[str, Any] = {"error": "the zygote ended"} if report is None else report[0]
        if "error" in body:
            raise InfraFault(FaultCause.SANDBOX, f"{self.isolation}: {body['error']}")
        ready = body["ready"]
        if ready["limits"].startswith("cgroup"):
            self._hierarchies = cgroups.find()
        elif self.isolation == "namespace/root":
            log.warning("no writable control groups: boxes are limited by rlimits only")
        if not ready["seccomp"] and self.name == "namespace":
            log.warning("no system call table for this machine: boxes run without a filter")

    def _on_event(self, body: wire.Body) -> None:
        life = self._lives.pop(str(body.get("gone")), None)
        if life is None:
            return
        life.channel.close(f"box {life.name} ended: {body.get('error', 'exit ' + str(body.get('exit')))}")
        if not life.gone.done():
            life.gone.set_result(None)

    def _zygote(self) -> Channel:
        if self._channel is None:
            raise InfraFault(FaultCause.SANDBOX, "the backend is closed")
        if self._channel.fault is not None:
            raise InfraFault(FaultCause.SANDBOX, self._channel.fault.detail)
        return self._channel

    def _lose_all(self, reason: str) -> None:
        """No box outlives its zygote: whoever waits for one, or for its end, waits no longer."""
        for life in self._lives.values():
            life.channel.close(reason)
            if not life.gone.done():
                life.gone.set_result(None)
        self._lives.clear()

    def oom_kills(self, name: str) -> int:
        """Processes of a box killed for memory so far; 0 where no control group tells."""
        if self._hierarchies is None:
            return 0
        try:
            return cgroups.oom_kills(self._hierarchies, self.lease, name)
        except FileNotFoundError:  # the box ended meanwhile
            return 0

    async def start(self, spec: SandboxSpec) -> Box:
        """A started box."""
        if self.name == "process" or not spec.changes_system():
            return Box(self, spec, await self.start_life(spec, None))
        base = self._base(spec)
        base.users += 1
        try:
            name = (await asyncio.shield(base.life)).name
            return Box(self, spec, await self.start_life(spec, name), base=name, release=lambda: self._release(base))
        except BaseException:
            self._release(base)
            raise

    async def start_life(self, spec: SandboxSpec, base: str | None) -> Life:
        """A new living box in its started state: laid over its base, or furnished from the spec."""
        life = await self.launch(spec, system=base, over=None)
        if base is not None:
            return life
        try:
            await furnish(life, spec)
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    def _base(self, spec: SandboxSpec) -> Base:
        """The started state of all specs with this digest; furnished once."""
        digest = spec.digest()
        base = self._bases.pop(digest, None)
        if base is None or base.failed:
            base = Base(asyncio.create_task(self._make_base(spec)))
        self._bases[digest] = base  # the latest used is the last
        return base

    def _release(self, base: Base) -> None:
        """One user less; the longest unused bases beyond BASES are ended."""
        base.users -= 1
        idle = [digest for digest, held in self._bases.items() if held.users == 0 and held.life.done()]
        for digest in idle[: max(0, len(idle) - BASES)]:
            held = self._bases.pop(digest)
            if not held.failed:
                self.discard(held.life.result())

    async def _make_base(self, spec: SandboxSpec) -> Life:
        life = await self.launch(spec, system=None, over=None)
        try:
            await furnish(life, spec)
            await life.channel.request({"op": "end"}, timeout_s=END_S)
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    async def launch(self, spec: SandboxSpec, *, system: str | None, over: str | None) -> Life:
        """Start a bare box; its start is known to the zygote before this returns or raises."""
        zygote = self._zygote()
        self._count += 1
        name = f"box{self._count}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        loop = asyncio.get_running_loop()
        life = Life(name, Channel(ours, f"box {name}"), loop.create_future())
        ready = life.channel.expect(0)
        self._lives[name] = life
        body = {
            "op": "start",
            "box": name,
            "hostname": "sandbox",
            "disk_bytes": spec.disk_mb << 20,
            # The box's files live in its memory: a full disk must not take the memory its programs were promised.
            "memory_bytes": (spec.memory_mb + spec.disk_mb) << 20,
            "pids": spec.pids,
            "cpus": spec.cpus,
            "system": system,
            "over": over,
        }
        try:
            with theirs:
                zygote.post(body, [theirs.fileno()])
            await life.channel.reply(ready, "start", START_S)
        except OSError as error:
            await asyncio.shield(self.end(life))
            raise InfraFault(FaultCause.SANDBOX, f"{self.isolation}: {error}") from error
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    async def seal(self, life: Life, paths: Sequence[str]) -> None:
        """Make folders of a living box read-only; OSError when they cannot be."""
        await self._zygote().request({"op": "seal", "box": life.name, "paths": list(paths)}, timeout_s=OPEN_S)

    def discard(self, life: Life) -> bool:
        """Have a living box ended; False when there is nothing to wait for."""
        life.channel.close(f"box {life.name} was stopped")
        if life.name not in self._lives or self._channel is None:
            return False
        self._channel.post({"op": "stop", "box": life.name})
        return True

    async def end(self, life: Life) -> None:
        """End a living box and wait until nothing of it is left."""
        if not self.discard(life):
            return
        if not await outlast(life.gone, END_S):
            raise InfraFault(FaultCause.SANDBOX, f"box {life.name} did not end in {END_S:g} s")

    async def close(self) -> None:
        """End the zygote, and with it every box."""
        for base in self._bases.values():
            base.life.cancel()
        self._bases.clear()
        if self._channel is not None:
            self._channel.close("the backend was closed")
            self._channel = None
        if self._process is not None:
            process, self._process = self._process, None
            try:
                await asyncio.to_thread(process.wait, END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        shutil.rmtree(self._state_dir / "boxes" / self.lease, ignore_errors=True)
        if await asyncio.to_thread(leases.remove_groups, self.lease):  # a killed zygote leaves them
            (self._state_dir / "leases" / f"{self.lease}.json").unlink(missing_ok=True)


def start_zygote(control: socket.socket, log_path: Path) -> subprocess.Popen[bytes]:
    """The zygote's process: no environment, no site, no terminal, one descriptor."""
    argv = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(Path(__file__).parent), str(control.fileno())]
    with log_path.open("ab") as errors:
        return subprocess.Popen(
            argv,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(control.fileno(),),
            start_new_session=True,
            cwd="/",
        )


async def _open_and_try(isolation: str, state_dir: Path) -> ZygoteBackend:
    """A backend in which a box has really started."""
    if isolation == "namespace/root" and os.geteuid() != 0:
        raise InfraFault(FaultCause.SANDBOX, f"{isolation}: needs root, this is uid {os.geteuid()}")
    backend = await ZygoteBackend.open(isolation, state_dir)
    try:
        box = await backend.start(SandboxSpec(memory_mb=64, disk_mb=8))
        result = await box.exec(["true"], timeout_s=10)
        await box.stop()
        if result.exit_code != 0:
            raise InfraFault(FaultCause.SANDBOX, f"{isolation}: `true` ended {result.exit_code}: {result.output!r}")
    except BaseException:
        await backend.close()
        raise
    return backend


async def open_backend(config: SandboxConfig, state_dir: Path) -> SandboxBackend:
    """The strongest backend that works here, tried by starting a box; says which it is and why not a stronger one."""
    if config.backend == "process" and not config.allow_unisolated:
        raise ConfigError(
            ["sandbox.backend=process has no isolation; it needs sandbox.allow_unisolated=true"], "sandbox"
        )
    state_dir = state_dir.resolve()
    state_dir.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(leases.sweep, state_dir / "leases", state_dir / "boxes")
    choices = ISOLATIONS[config.backend]
    if config.backend == "auto" and config.allow_unisolated:
        choices = (*choices, "process")
    refusals: list[str] = []
    for isolation in choices:
        try:
            backend = await _open_and_try(isolation, state_dir)
        except InfraFault as fault:
            refusals.append(fault.detail)
            continue
        if isolation == "process":
            log.warning("sandbox: NO ISOLATION. Commands of the model run as this user, with its files and network.")
        log.info("sandbox: %s%s", isolation, f" ({'; '.join(refusals)})" if refusals else "")
        return backend
    raise ConfigError([f"no sandbox can be had on this machine: {'; '.join(refusals)}. {ADVICE}"], "sandbox")
