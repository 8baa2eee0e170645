"""Boxes that a Docker engine runs: one container each, with a pool of started ones.

Invariant: what this backend makes bears its owner's labels before it exists. A box ends when its stream closes, so
this process's end is its boxes' end; what is left of them, or of an engine that ended first, the reaper removes.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from docker.errors import APIError

from components.config.rollout import SandboxConfig
from components.errors import ConfigError, FaultCause, InfraFault
from components.sandbox.admission import Admission
from components.sandbox.box import furnish
from components.sandbox.contract import SandboxSpec
from components.sandbox.docker import reaper
from components.sandbox.docker.box import DockerBox, DockerLife
from components.sandbox.docker.engine import Certificates, Engine, is_missing
from components.sandbox.docker.images import SNAPSHOTS, Image, Images
from components.sandbox.docker.outlet import Outlet
from components.sandbox.docker.profile import host_config
from components.sandbox.docker.stream import BoxStream
from components.sandbox.docker.tools import LABEL, fill_volume

log = logging.getLogger(__name__)

START_S = 60.0
PING_S = 2.0
STARTS_AT_ONCE = 8
"""An engine on two cores starts eight a second, whatever it is asked for at once."""
TTLS = 30
"""A backend may outlive so many of its boxes one after another, and they need its volume."""
POOLS = 8
"""Kinds of box that are kept ready: those asked for last."""
REAP_EVERY_S = 60.0
WEIGH_EVERY_S = 5.0
DISKS = 2
"""Where nothing keeps a box to its disk, one file may fill it, and others as much again, before who writes is ended."""
ADVICE = (
    "Start one (Debian, Ubuntu: apt-get install docker.io), name another with sandbox.docker.host, or use "
    "sandbox.backend=namespace, which needs none"
)


class Kind(NamedTuple):
    """What a started container can be used for."""

    image: str
    cpus: float
    memory_mb: int
    disk_mb: int
    pids: int


@dataclass
class Pool:
    """Started containers of one kind, and how many are being started."""

    spec: SandboxSpec
    image: Image
    ready: deque[DockerLife]
    coming: int = 0


class DockerBackend:
    """Starts boxes on one engine."""

    name = "docker"
    isolation = "docker"

    def __init__(self, engine: Engine, config: SandboxConfig, admission: Admission) -> None:
        self._engine = engine
        self._config = config.docker
        self._admission = admission
        self.lease = f"longshell-{secrets.token_hex(6)}"
        self._images = Images(engine, config.docker.image, config.docker.build_network, config.built_mb << 20)
        self._lives: dict[str, DockerLife] = {}
        self._names: set[str] = set()
        """Of containers that are being started, live, or are about to be removed."""
        self._pools: dict[Kind, Pool] = {}
        self._numbers = itertools.count(1)
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._background: set[asyncio.Task[Any]] = set()
        self._command: tuple[str, ...] = ()
        self._quota = False
        self._closed = False

    async def open(self) -> None:
        """Make what boxes need, and start one."""
        await self._reap()
        self._command = await fill_volume(
            self._engine, self.lease, reaper.labels(self.lease, TTLS * self._config.box_ttl_s)
        )
        await self._try()
        await self._images.collect()
        self._do(self._reap_now_and_then())
        if not self._quota:
            self._do(self._weigh_now_and_then())

    async def _try(self) -> None:
        """Whether disks can have a size, and folders be sealed, is seen by trying."""
        spec = SandboxSpec(memory_mb=64, disk_mb=32)
        image = await self._images.of_task(None, spec.setup_timeout_s)
        try:
            self._quota = True
            life = await self._launch(spec, image)
        except InfraFault as fault:
            if "storage-opt" not in fault.detail and "pquota" not in fault.detail:
                raise
            self._quota = False
            log.warning("the engine's storage cannot limit a box's disk (it can on xfs with pquota): boxes are weighed")
            life = await self._launch(spec, image)
        box = DockerBox(self, spec, life)
        view = await box.fork_view()
        await view.put({"/tests/test.sh": b""})
        await view.seal("/tests")
        result = await view.exec(["true"], timeout_s=10, cwd="/")
        await asyncio.gather(view.stop(), box.stop())
        if result.exit_code != 0:
            raise InfraFault(FaultCause.SANDBOX, f"`true` ended {result.exit_code}: {result.output!r}")

    def _do(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def start(self, spec: SandboxSpec) -> DockerBox:
        """A started box."""
        try:
            return await self._start(spec)
        except InfraFault as fault:
            if spec.snapshot is not None or not is_missing(fault):
                raise
        return await self._start(spec)  # its image was collected after it had been found

    async def _start(self, spec: SandboxSpec) -> DockerBox:
        if self._closed:
            raise InfraFault(FaultCause.SANDBOX, "the backend is closed")
        if spec.snapshot is not None:
            image, spec = await self._images.snapshot(spec.snapshot), spec.without_steps()
        else:
            image, spec = await self._images.of_task(spec.image, spec.setup_timeout_s), spec.without_image_steps()
        if spec.changes_system():
            key = hashlib.sha256(f"{image.id} {spec.digest()}".encode()).hexdigest()[:24]
            image = await self._images.state(key, partial(self._make_state, spec, image))
            spec = spec.without_steps()
        return DockerBox(self, spec, await self.start_life(spec, image))

    async def start_life(self, spec: SandboxSpec, image: Image) -> DockerLife:
        """A new container in the started state."""
        life = await self.launch(spec, image)
        try:
            await furnish(life, spec)
        except BaseException:
            await asyncio.shield(self.end(life))
            raise
        return life

    async def _make_state(self, spec: SandboxSpec, image: Image, repository: str, tag: str) -> None:
        """Make a started state an image."""
        life = await self.launch(spec, image)
        try:
            await furnish(life, spec)
            await life.stream.request({"op": "end"}, timeout_s=START_S)
            await self._commit(life, repository, tag)
        finally:
            await asyncio.shield(self.end(life))

    async def _commit(self, life: DockerLife, repository: str, tag: str) -> None:
        variables = [f"{name}={value}" for name, value in life.image.env.items()]
        # An image keeps the labels of its box, and gives them to whatever is made of it.
        conf = {"Labels": {reaper.LEASE: "", LABEL: repository.rpartition("/")[2]}, "Env": variables}
        with life.moved():
            await self._engine.call(
                f"commit of {life.name}", lambda api: api.commit(life.name, repository, tag, conf=conf)
            )

    async def save_snapshot(self, life: DockerLife) -> str:
        """Save the files of a box whose programs have ended."""
        key = secrets.token_hex(8)
        await self._commit(life, SNAPSHOTS, key)
        return f"snapshot-{key}"

    async def forget(self, snapshot: str) -> None:
        """Remove a snapshot; the engine keeps what others were made over."""
        await self._images.forget(snapshot)

    @property
    def counts(self) -> dict[str, float]:
        """How often, and for how many seconds, boxes were not started at once; see `Admission.counts`."""
        return self._admission.counts

    async def launch(self, spec: SandboxSpec, image: Image) -> DockerLife:
        """A container of this image, not furnished: a ready one that still answers, or a new one."""
        life = await self._take(spec, image)
        if spec.network == "proxy":
            life.outlet = Outlet(life.stream, spec.hosts)
            try:
                await life.outlet.open()
            except BaseException:
                await asyncio.shield(self.end(life))
                raise
        return life

    async def _take(self, spec: SandboxSpec, image: Image) -> DockerLife:
        if self._config.prewarm == 0:
            return await self._launch(spec, image)
        kind = Kind(image.id, spec.cpus, spec.memory_mb, spec.disk_mb, spec.pids)
        pool = self._pools.pop(kind, None) or Pool(spec, image, deque())
        self._pools[kind] = pool  # the latest used is the last
        for forgotten in list(self._pools)[:-POOLS]:
            for idle in self._pools.pop(forgotten).ready:
                self._do(self.end(idle))
        life = await self._ready(pool)
        self._fill(pool)
        return life or await self._launch(spec, image)

    async def _ready(self, pool: Pool) -> DockerLife | None:
        while pool.ready:
            life = pool.ready.popleft()
            try:
                await life.stream.request({"op": "ping"}, timeout_s=PING_S)
            except InfraFault as fault:
                log.warning("a ready box was not: %s", fault.detail)
                self._do(self.end(life))
                continue
            except asyncio.CancelledError:
                pool.ready.append(life)  # whether it is ready is asked anew
                raise
            return life
        return None

    def _fill(self, pool: Pool) -> None:
        while len(pool.ready) + pool.coming < self._config.prewarm:
            pool.coming += 1
            self._do(self._add(pool))

    async def _add(self, pool: Pool) -> None:
        try:
            life = await self._launch(pool.spec, pool.image)
            if self._closed or pool not in self._pools.values():
                await self.end(life)
            else:
                pool.ready.append(life)
        except InfraFault as fault:
            log.warning("no box could be made ready: %s", fault.detail)
        finally:
            pool.coming -= 1

    async def _launch(self, spec: SandboxSpec, image: Image) -> DockerLife:
        if self._closed:
            raise InfraFault(FaultCause.SANDBOX, "the backend is closed")
        name = f"{self.lease}-{next(self._numbers)}"
        await self._admission.enter()
        self._names.add(name)
        async with self._starts:
            try:
                return await self._begin(name, spec, image)
            except BaseException:
                await asyncio.shield(self._remove(name))
                raise

    async def _begin(self, name: str, spec: SandboxSpec, image: Image) -> DockerLife:
        def create(api: Any) -> None:
            api.create_container(
                image.id,
                name=name,
                hostname="sandbox",
                user="0:0",
                working_dir="/",
                entrypoint=list(self._command),
                command=[],
                stdin_open=True,
                environment={"LD_PRELOAD": "", "LD_LIBRARY_PATH": ""},  # an image's are for its programs
                healthcheck={"test": ["NONE"]},
                labels=reaper.labels(self.lease, self._config.box_ttl_s),
                host_config=host_config(api, spec, self.lease, quota=self._quota),
            )

        await self._engine.call(name, create)
        stream = BoxStream(await self._engine.attach(name), f"box {name}", lambda: self._why(name))
        life = DockerLife(name, image, stream, DISKS * spec.disk_mb << 20)
        self._lives[name] = life
        ready = stream.expect(0)
        await self._engine.call(name, lambda api: api.start(name))
        try:
            await stream.reply(ready, "start", START_S)
        except OSError as error:
            raise InfraFault(FaultCause.SANDBOX, f"box {name}: {error}") from error
        return life

    async def _why(self, name: str) -> tuple[str, bool]:
        """What became of a container whose stream has ended, and whether its first process was killed for memory."""
        try:
            state = (await self._engine.call(name, lambda api: api.inspect_container(name)))["State"]
        except InfraFault as fault:
            return "it was removed" if is_missing(fault) else fault.detail, False
        if state.get("OOMKilled"):
            return "the kernel ended it for memory", True
        told = f"it is {state.get('Status')}, exit code {state.get('ExitCode')} {state.get('Error', '')}"
        return told.rstrip(), False

    async def changes(self, life: DockerLife) -> list[tuple[str, int]]:
        """The engine's list of what is not as in the image."""
        found = await self._engine.call(life.name, lambda api: api.diff(life.name))
        return [(entry["Path"], entry["Kind"]) for entry in found or []]

    async def end(self, life: DockerLife) -> None:
        """End a living box and remove it."""
        if life.outlet is not None:
            life.outlet.close()
        life.stream.close(f"box {life.name} was stopped")
        if self._lives.pop(life.name, None) is not None:
            await self._remove(life.name)

    async def _remove(self, name: str) -> None:
        life = self._lives.pop(name, None)
        if life is not None:
            life.stream.close(f"box {name} was stopped")
        try:
            await asyncio.get_running_loop().run_in_executor(None, reaper.remove, self._engine, name)
        finally:
            self._names.discard(name)  # where it could not be removed now, the reaper does it later

    async def _reap(self) -> None:
        await asyncio.to_thread(reaper.reap, self._engine, self.lease, self._names.__contains__)

    async def _reap_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            try:
                await self._reap()
            except InfraFault as fault:
                log.warning("reaper: %s", fault.detail)

    async def _weigh_now_and_then(self) -> None:
        """Hold boxes to their disks, where the engine cannot."""
        limits = {"label": f"{reaper.LEASE}={self.lease}"}
        while True:
            await asyncio.sleep(WEIGH_EVERY_S)
            try:
                found = await self._engine.call("weighing", lambda api: api.containers(size=True, filters=limits))
            except InfraFault as fault:
                log.warning("boxes were not weighed: %s", fault.detail)
                continue
            lives = [(self._lives.get(box["Names"][0].lstrip("/")), int(box.get("SizeRw", 0))) for box in found]
            await asyncio.gather(*(self._weighed(life, held) for life, held in lives if life is not None))

    async def _weighed(self, life: DockerLife, held: int) -> None:
        """Whoever fills a box beyond its disk is ended, as if for memory, and its shells with it if that is not enough.

        That is the policy's doing and not a fault: the box lives, and what is in it is graded.
        """
        if life.moving:
            return
        grown, life.held_bytes = held > life.held_bytes, held
        if held <= life.most_bytes:
            life.curbed = False
            return
        if life.curbed and not grown:
            return
        names = f"box {life.name} holds {held >> 20} MB, more than {life.most_bytes >> 20}"
        try:
            said, _ = await life.stream.request({"op": "curb", "spare": not life.curbed}, timeout_s=START_S)
        except (InfraFault, OSError) as error:
            life.stream.close(f"{names}, and its programs cannot be ended: {error}")
            self._do(self.end(life))
            return
        life.curbed = True
        log.warning("%s: ended %s", names, ", ".join(said["ended"]) or "nothing")

    async def close(self) -> None:
        """Stop every box and let go of the engine. Idempotent; an engine that is away has its reaper later."""
        if self._closed:
            return
        self._closed = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        try:
            await asyncio.gather(*(self.end(life) for life in list(self._lives.values())))
            await self._reap()
            await asyncio.to_thread(reaper.remove_volume, self._engine, self.lease)
        except InfraFault as fault:
            log.warning("not everything was removed: %s", fault.detail)
        self._engine.close()


async def open_docker(config: SandboxConfig, state_dir: Path) -> DockerBackend:
    """A backend on the configured engine, in which a box has really started.

    Raises:
        ConfigError: the engine refuses what boxes need.
        InfraFault: it does not answer, or was lost meanwhile: one that is started again is found by the next attempt.
    """
    tls = config.docker.tls
    engine = Engine(config.docker.host, Certificates(Path(tls)) if tls else None)
    backend: DockerBackend | None = None
    try:
        await engine.call("sandbox.backend=docker", lambda api: api.ping())
        admission = Admission(state_dir, min_free_mb=config.min_free_mb, starts_per_s=config.starts_per_s)
        backend = DockerBackend(engine, config, admission)
        await backend.open()
    except InfraFault as fault:
        await (backend.close() if backend is not None else asyncio.to_thread(engine.close))
        problem = f"no box can be had: {fault.detail}. {ADVICE}"
        if isinstance(fault.__cause__, APIError):
            raise ConfigError([problem], "sandbox.docker") from fault
        raise InfraFault(fault.cause, f"sandbox.docker: {problem}") from fault
    except BaseException:
        await (backend.close() if backend is not None else asyncio.to_thread(engine.close))
        raise
    log.info("sandbox: docker at %s", config.docker.host)
    return backend
