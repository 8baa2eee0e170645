"""Boxes on this machine: the manager's side of a zygote, and the choice of the strongest isolation that works here.

Invariant: whatever this backend makes has an owner on disk before it exists, and ends with this process: boxes and
mounts because the zygote sees its socket close, control groups and folders because the zygote removes them or, were it
killed too, because the next `open_backend` sweeps what ownerless leases left.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from components.config.rollout import SandboxConfig
from components.errors import ConfigError, FaultCause, InfraFault
from components.sandbox import leases
from components.sandbox.admission import Admission
from components.sandbox.box import furnish
from components.sandbox.channel import Channel
from components.sandbox.contract import SandboxBackend, SandboxSpec
from components.sandbox.exchange import outlast
from components.sandbox.image import steps_digest
from components.sandbox.local_box import LocalBox, LocalLife, save
from components.sandbox.proxy import BoxProxy
from components.sandbox.store import BASE, SAVED, ImageStore, Stack
from components.sandbox.zygote import cgroups, trees, wire

log = logging.getLogger(__name__)

FIRST_UID = 1_000_000
UID_COUNT = 65_536
"""A range no user of the host has: a process that left its box would be nobody."""
OPEN_S = 30.0
START_S = 60.0
END_S = 60.0
"""64 boxes ended at once take 0.1 s, with 64 busy processes beside them 2.4 s: all boxes share the weight of one."""
KILLED = 128 + signal.SIGKILL
"""How the zygote tells of a first process that was killed. Nothing in its box can; the kernel does, for memory."""
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
KEY_CHARS = 32
LAUNCHER = "import sys; sys.path.append(sys.argv[1]); from zygote.main import main; main(int(sys.argv[2]))"


@dataclass
class Base:
    """A started state that boxes are laid over. Its box lives while any of them does: their views need it."""

    life: asyncio.Task[LocalLife]
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

    def __init__(
        self,
        isolation: str,
        state_dir: Path,
        lease: str,
        images: Path | None = None,
        built_mb: int | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.isolation = isolation
        self.lease = lease
        self.name = isolation.partition("/")[0]
        self._state_dir = state_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lives: dict[str, LocalLife] = {}
        self._bases: dict[str, Base] = {}
        self._count = 0
        self._hierarchies: cgroups.Hierarchies | None = None
        self._has_images = images is not None
        most_bytes = None if built_mb is None else built_mb << 20
        self._store = ImageStore(state_dir / "images" if images is None else images, most_bytes)
        self._builds: dict[str, asyncio.Task[Stack]] = {}
        self._admission = admission
        self._heartbeat: leases.Heartbeat | None = None

    @classmethod
    async def open(
        cls,
        isolation: str,
        state_dir: Path,
        *,
        images: Path | None = None,
        built_mb: int | None = None,
        admission: Admission | None = None,
        idmap: bool = True,
        become_uid: int | None = None,
    ) -> ZygoteBackend:
        """Start a zygote; InfraFault tells what is missing.

        Args:
            images: the folder that FROM is looked up in, and that builds and snapshots are kept in. Without, FROM is
                the host's userland, and snapshots are kept in `state_dir`.
            built_mb: what is built may take, see `SandboxConfig.built_mb`; None for whatever there is.
            admission: asked before every creation of a box.
            become_uid: drops root first (for tests of that path).
        """
        owner = leases.current_owner()
        backend = cls(isolation, state_dir, leases.new_lease(owner), images, built_mb, admission)
        lease = leases.record(state_dir / "leases", backend.lease, owner)
        backend._heartbeat = leases.Heartbeat(lease, state_dir / "boxes")
        backend._heartbeat.start()
        try:
            await backend._open(idmap, become_uid)
        except BaseException:
            await backend.close()
            raise
        return backend

    async def _open(self, idmap: bool, become_uid: int | None) -> None:
        staging = self._state_dir / "boxes" / self.lease
        staging.mkdir(parents=True, mode=0o755)
        for place in (staging, *self._store.private) if become_uid is not None else ():
            os.chown(place, become_uid or 0, become_uid or 0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = start_zygote(theirs, self._state_dir / "zygote.log")
        theirs.close()
        settings = {
            "isolation": self.isolation,
            "staging": str(staging),
            "images": str(self._store.folder),
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
        spent = body.get("exit") == KILLED and body["oom_kills"] > 0
        why = "the kernel killed its first process for memory" if spent else f"exit {body.get('exit')}"
        self._gone(life, f"box {life.name} ended: {body.get('error', why)}", spent=spent)

    def _gone(self, life: LocalLife, reason: str, *, spent: bool = False) -> None:
        """A box that is no more: whoever waits for it, or for its end, waits no longer."""
        life.channel.close(reason, spent=spent)
        self._store.release(life.stack)
        if not life.gone.done():
            life.gone.set_result(None)

    def _zygote(self) -> Channel:
        if self._channel is None:
            raise InfraFault(FaultCause.SANDBOX, "the backend is closed")
        if self._channel.fault is not None:
            raise InfraFault(FaultCause.SANDBOX, self._channel.fault.detail)
        return self._channel

    def _lose_all(self, reason: str) -> None:
        """No box outlives its zygote."""
        while self._lives:
            self._gone(self._lives.popitem()[1], reason)

    def _oom_kills(self, name: str) -> int:
        """Processes of a box killed for memory so far; 0 where no control group tells."""
        if self._hierarchies is None:
            return 0
        try:
            return cgroups.oom_kills(self._hierarchies, self.lease, name)
        except FileNotFoundError:  # the box ended meanwhile
            return 0

    def _reached_limit(self, name: str) -> bool:
        """Whether a box's own limit can have brought a kill about; also where nothing tells."""
        try:
            return self._hierarchies is None or cgroups.reached_limit(self._hierarchies, self.lease, name)
        except FileNotFoundError:  # the box ended meanwhile
            return True

    async def start(self, spec: SandboxSpec) -> LocalBox:
        """A started box."""
        stack, spec = await self._below(spec)
        if self.name == "process" or not spec.changes_system():
            return LocalBox(self, spec, await self.start_life(spec, stack, None))
        base = self._base(spec, stack)
        base.users += 1
        try:
            name = (await asyncio.shield(base.life)).name
            life = await self.start_life(spec, stack, name)
            return LocalBox(self, spec, life, base=name, release=lambda: self._release(base))
        except BaseException:
            self._release(base)
            raise

    async def _below(self, spec: SandboxSpec) -> tuple[Stack, SandboxSpec]:
        """What the box is laid over, and what is left to be done then."""
        if spec.snapshot is not None:
            saved = self._store.layer(spec.snapshot)
            if saved is None:
                raise InfraFault(FaultCause.SANDBOX, f"there is no snapshot {spec.snapshot} in {self._store.folder}")
            return saved, spec.without_steps()
        if spec.image is None or not self._has_images:
            return Stack(), spec
        if self.name == "process":
            raise InfraFault(FaultCause.IMAGE, "without isolation there is no other userland than the host's")
        try:
            base = self._store.base(spec.image.base)
        except LookupError as error:
            where = f"Dockerfile line {spec.image.line}: FROM {spec.image.base}"
            raise InfraFault(FaultCause.IMAGE, f"{where}: {error}. `make image` makes one.") from error
        stack = Stack(base)
        if spec.image.steps:
            stack = await self._built(replace(spec, files={}, setup=()), stack)
        rest = spec.without_image_steps()
        if (
            rest.changes_system()
        ):  # a layer, too: a box over a box over an image would be one overlay too deep for views
            return await self._built(rest, stack), spec.without_steps()
        return stack, rest

    async def _built(self, spec: SandboxSpec, below: Stack) -> Stack:
        """What the steps of a spec make of an image, once however many ask, in this process and others."""
        assert below.base is not None, "the host's userland is built over in memory"
        env = sorted(below.base.env.items())
        start = repr((below.base.key, env, below.layers, spec.workdir, spec.build_network, spec.hosts))
        key = steps_digest(spec.steps(), start)[:KEY_CHARS]
        build = self._builds.get(key)
        if build is None:
            build = self._builds[key] = asyncio.create_task(self._build(key, spec, below))
            build.add_done_callback(lambda _: self._builds.pop(key, None))  # it may be collected: who asks next looks
            build.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(build)

    async def _build(self, key: str, spec: SandboxSpec, below: Stack) -> Stack:
        async with self._store.making(key):
            built = self._store.layer(key)
            if built is not None:
                return built
            maker = replace(spec, network=spec.build_network)
            life = await self.launch(maker, below, system=None, over=None)
            try:
                await furnish(life, maker)
                await life.channel.request({"op": "end"}, timeout_s=END_S)
                built = await self._save(life, key, below)
            finally:
                await asyncio.shield(self.end(life))
        await self.collect()
        return built

    async def collect(self) -> None:
        """Remove layers that nobody has used for long, where built ones take more than they may."""
        try:
            removed = await asyncio.to_thread(self._store.collect)
        except OSError as error:  # what was not removed is tried again after the next build
            log.warning("layers of %s were not collected: %s", self._store.folder, error)
            return
        if removed:
            log.info("removed %d layer(s) of %s, the longest unused", len(removed), self._store.folder)

    async def save_snapshot(self, life: LocalLife, base: str | None) -> str:
        """Save the files of a box whose programs have ended, and of the base that it is laid over, if any."""
        below = life.stack
        async with AsyncExitStack() as held:
            if base is not None:
                key = f"{BASE}{hashlib.sha256(f'{self.lease} {base}'.encode()).hexdigest()[:KEY_CHARS]}"
                # Held until something lies over it: `forget` would remove it.
                await held.enter_async_context(self._store.making(key))
                below = self._store.layer(key) or await self._save(self._lives[base], key, below)
            key = f"{SAVED}{secrets.token_hex(KEY_CHARS // 2)}"
            await held.enter_async_context(self._store.making(key))
            await self._save(life, key, below)
        return key

    async def _save(self, life: LocalLife, key: str, below: Stack) -> Stack:
        shift = FIRST_UID if self.isolation == "namespace/root" else None
        try:
            return await save(life, self._store, key, below, shift=shift)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"{life.name} cannot be saved: {error}") from error

    async def forget(self, snapshot: str) -> None:
        """Remove a snapshot, which those that were made over it need, and a base that only it needed."""
        saved = self._store.layer(snapshot)
        await asyncio.to_thread(self._store.remove, snapshot)
        for layer in () if saved is None else saved.layers:
            if not layer.startswith(BASE):
                continue
            async with self._store.making(layer):
                if not self._store.needs(layer):
                    await asyncio.to_thread(self._store.remove, layer)

    async def start_life(self, spec: SandboxSpec, stack: Stack, base: str | None) -> LocalLife:
        """A new living box in its started state: laid over its base, or furnished from the spec."""
        life = await self.launch(spec, stack, system=base, over=None)
        if base is not None:
            return life
        try:
            await furnish(life, spec)
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    def _base(self, spec: SandboxSpec, stack: Stack) -> Base:
        """The started state of all specs with this digest; furnished once."""
        digest = f"{'' if stack.base is None else stack.base.key} {stack.layers} {spec.digest()}"
        base = self._bases.pop(digest, None)
        if base is None or base.failed:
            base = Base(asyncio.create_task(self._make_base(spec, stack)))
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

    async def _make_base(self, spec: SandboxSpec, stack: Stack) -> LocalLife:
        life = await self.launch(replace(spec, network=spec.build_network), stack, system=None, over=None)
        try:
            await furnish(life, spec)
            await life.channel.request({"op": "end"}, timeout_s=END_S)
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    @property
    def counts(self) -> dict[str, float]:
        """How often, and for how many seconds, boxes were not started at once; see `Admission.counts`."""
        return {} if self._admission is None else self._admission.counts

    async def launch(self, spec: SandboxSpec, stack: Stack, *, system: str | None, over: str | None) -> LocalLife:
        """Start a bare box; its start is known to the zygote before this returns or raises."""
        try:
            self._store.hold(stack)
        except LookupError as error:
            raise InfraFault(FaultCause.SANDBOX, str(error)) from error
        try:
            if self._admission is not None:
                await self._admission.enter()
            zygote = self._zygote()
        except BaseException:
            self._store.release(stack)
            raise
        self._count += 1
        name = f"box{self._count}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        loop = asyncio.get_running_loop()
        life = LocalLife(
            name,
            Channel(ours, f"box {name}", told=True),
            loop.create_future(),
            stack,
            partial(self._oom_kills, name),
            partial(self._reached_limit, name),
        )
        ready = life.channel.expect(0)
        self._lives[name] = life  # which holds its layers from here on
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
            "image": stack.order(),
            "proxy": spec.network == "proxy",
        }
        try:
            with theirs:
                zygote.post(body, [theirs.fileno()])
            _, listening = await life.channel.reply(ready, "start", START_S)
            if listening:
                life.proxy = BoxProxy(spec.hosts)
                await life.proxy.serve(listening[0])
        except OSError as error:
            await asyncio.shield(self.end(life))
            raise InfraFault(FaultCause.SANDBOX, f"{self.isolation}: {error}") from error
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    async def seal(self, life: LocalLife, paths: Sequence[str]) -> None:
        """Make folders of a living box read-only; OSError when they cannot be."""
        await self._zygote().request({"op": "seal", "box": life.name, "paths": list(paths)}, timeout_s=OPEN_S)

    def discard(self, life: LocalLife) -> bool:
        """Have a living box ended; False when there is nothing to wait for."""
        life.channel.close(f"box {life.name} was stopped")
        if life.proxy is not None:
            life.proxy.close()
        if life.name not in self._lives or self._channel is None:
            return False
        self._channel.post({"op": "stop", "box": life.name})
        return True

    async def end(self, life: LocalLife) -> None:
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
        for build in self._builds.values():
            build.cancel()
        self._builds.clear()
        for life in self._lives.values():
            if life.proxy is not None:
                life.proxy.close()
        if self._channel is not None:
            self._channel.close("the backend was closed")
            self._channel = None
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._process is not None:
            process, self._process = self._process, None
            try:
                await asyncio.to_thread(process.wait, END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        trees.remove(self._state_dir / "boxes" / self.lease)
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


async def _open_and_try(isolation: str, state_dir: Path, config: SandboxConfig, admission: Admission) -> ZygoteBackend:
    """A backend in which a box has really started."""
    if isolation == "namespace/root" and os.geteuid() != 0:
        raise InfraFault(FaultCause.SANDBOX, f"{isolation}: needs root, this is uid {os.geteuid()}")
    backend = await ZygoteBackend.open(
        isolation,
        state_dir,
        images=None if config.images is None else Path(config.images),
        built_mb=config.built_mb,
        admission=admission,
    )
    try:
        await backend.collect()
        box = await backend.start(SandboxSpec(memory_mb=64, disk_mb=8))
        result = await box.exec(["true"], timeout_s=10)
        await box.stop()
        if result.exit_code != 0:
            raise InfraFault(FaultCause.SANDBOX, f"{isolation}: `true` ended {result.exit_code}: {result.output!r}")
    except BaseException:
        await backend.close()
        raise
    return backend


async def _open_docker(config: SandboxConfig, state_dir: Path) -> SandboxBackend:
    try:
        from components.sandbox.docker import open_docker  # the SDK is there for those who ask for it
    except ModuleNotFoundError as error:
        problem = f"sandbox.backend=docker needs the docker SDK: pip install 'longshell[docker]' ({error})"
        raise ConfigError([problem], "sandbox") from error
    return await open_docker(config, state_dir)


async def open_backend(config: SandboxConfig, state_dir: Path) -> SandboxBackend:
    """The strongest backend that works here, tried by starting a box; says which it is and why not a stronger one."""
    if config.backend == "process" and not config.allow_unisolated:
        raise ConfigError(
            ["sandbox.backend=process has no isolation; it needs sandbox.allow_unisolated=true"], "sandbox"
        )
    state_dir = state_dir.resolve()
    state_dir.mkdir(parents=True, exist_ok=True)
    if config.backend == "docker":
        return await _open_docker(config, state_dir)
    images = state_dir / "images" if config.images is None else Path(config.images)
    await asyncio.to_thread(leases.sweep, state_dir / "leases", state_dir / "boxes")
    try:
        await asyncio.to_thread(ImageStore(images).sweep)
    except PermissionError as error:
        problem = f"{images} is another user's, and only its owner may enter it: make one for this user ({error})"
        raise ConfigError([problem], "sandbox.images") from error
    admission = Admission(state_dir, min_free_mb=config.min_free_mb, starts_per_s=config.starts_per_s)
    choices = ISOLATIONS[config.backend]
    if config.backend == "auto" and config.allow_unisolated:
        choices = (*choices, "process")
    refusals: list[str] = []
    for isolation in choices:
        try:
            backend = await _open_and_try(isolation, state_dir, config, admission)
        except InfraFault as fault:
            refusals.append(fault.detail)
            continue
        if isolation == "process":
            log.warning("sandbox: NO ISOLATION. Commands of the model run as this user, with its files and network.")
        log.info("sandbox: %s%s", isolation, f" ({'; '.join(refusals)})" if refusals else "")
        return backend
    raise ConfigError([f"no sandbox can be had on this machine: {'; '.join(refusals)}. {ADVICE}"], "sandbox")
