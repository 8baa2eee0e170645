"""The zygote: one single-threaded process per backend from which boxes are forked.

Invariant: a box is never without its zygote, nor a zygote without its manager. The manager's socket closing (or its pid
changing) makes the zygote kill every box, wait for it, remove its control group and exit; the zygote's death makes the
kernel kill every box (parent-death signal). The zygote itself only forks, waits and answers: a box builds itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import select
import signal
import socket
import stat
import sys
import traceback
from typing import NamedTuple

from . import build, cgroups, changes, kernel, processes, seccomp, server, trees, userland, wire

WATCH_MS = 1000
INODES_PER_MIB = 256
FEWEST_INODES = 20_000


class Settings(NamedTuple):
    """How this zygote makes boxes; sent by the manager as its first message."""

    isolation: str
    staging: str
    images: str | None
    lease: str
    first_uid: int
    uid_count: int
    idmap: bool
    become_uid: int | None
    manager_pid: int


class Box(NamedTuple):
    """A living box: its pid here, its control groups, a handle on its mounts (once it has them)."""

    pid: int
    groups: list[str]
    sync: socket.socket | None
    mounts: int | None
    folder: str


class Zygote:
    """The state of the zygote's loop."""

    def __init__(self, manager: socket.socket, settings: Settings) -> None:
        self._manager = manager
        self._settings = settings
        self._boxes: dict[str, Box] = {}
        self._busy_groups: list[str] = []
        self._tools: build.Tools | None = None
        self._lease_groups: cgroups.Hierarchies | None = None
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def prepare(self) -> wire.Body:
        """Enter the zygote's own root; tells the manager which limits it can set."""
        settings = self._settings
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        if settings.isolation == "process":
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
            return {"limits": "none", "seccomp": False}
        privileged = settings.isolation == "namespace/root"
        if settings.become_uid is not None:
            os.setgroups([])
            os.setresgid(settings.become_uid, settings.become_uid, settings.become_uid)
            os.setresuid(settings.become_uid, settings.become_uid, settings.become_uid)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # a change of user hides /proc/self from its new owner
        hierarchies = cgroups.find() if privileged else None
        if hierarchies is not None:
            self._lease_groups = hierarchies
            cgroups.open_lease(hierarchies, settings.lease)
        if not privileged:
            userland.become_namespace_root()
        root_uid = settings.first_uid if privileged else 0
        land = userland.prepare(
            settings.staging, settings.images, root_uid, settings.uid_count, settings.idmap, hierarchies
        )
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last_capability = int(file.read())
        mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        filters = seccomp.assemble(platform.machine()) if seccomp.supported() else None
        self._tools = build.Tools(land, mounts, last_capability, filters)
        self._lease_groups = land.hierarchies
        limits = "rlimit" if hierarchies is None else f"cgroup v{hierarchies.version}"
        return {"limits": limits, "seccomp": filters is not None}

    def serve(self) -> None:
        """Until the manager is gone."""
        gc.collect()
        gc.freeze()  # what exists now stays shared with every box
        gc.disable()
        self._poll.register(self._manager, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        while os.getppid() == self._settings.manager_pid:
            ready = {fd for fd, _ in self._poll.poll(WATCH_MS)}
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            for name, box in list(self._boxes.items()):
                if box.sync is not None and box.sync.fileno() in ready:
                    self._map_users(name, box, box.sync)
            self._reap()
            if self._manager.fileno() in ready:
                received = wire.receive(self._manager)
                if received is None:
                    break
                self._handle(*received)
        self.end_all()

    def _handle(self, body: wire.Body, fds: list[int]) -> None:
        """The boundary at which a box that cannot be started becomes an answer."""
        name = body["box"]
        if body["op"] == "seal":
            self._tell({"id": body["id"], **self._seal(name, body["paths"])})
            return
        try:
            if body["op"] == "start":
                self._start(name, body, fds[0])
            elif name in self._boxes:
                self._kill(self._boxes[name])
        except OSError as error:
            self._tell({"gone": name, "error": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _tell(self, body: wire.Body) -> None:
        try:
            wire.send(self._manager, body)
        except (BrokenPipeError, ConnectionResetError):
            return  # the loop sees the closed socket next

    def _start(self, name: str, body: wire.Body, control: int) -> None:
        if self._tools is None:
            self._start_plain(name, body, control)
            return
        limits = cgroups.Limits(body["memory_bytes"], body["pids"], body["cpus"])
        hierarchies = self._tools.userland.hierarchies
        groups = [] if hierarchies is None else cgroups.create(hierarchies, self._settings.lease, name, limits)
        inodes = max(FEWEST_INODES, (body["disk_bytes"] >> 20) * INODES_PER_MIB)
        order = build.Order(
            body["hostname"],
            body["disk_bytes"],
            inodes,
            limits,
            groups,
            self._mounts(body["system"]),
            self._mounts(body["over"]),
            self._image(body["image"], view=body["over"] is not None),
            body["proxy"],
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = kernel.fork_into(kernel.NEWPID)
        except OSError:
            cgroups.remove(groups)
            raise
        if pid == 0:
            self._live_in_box(order, self._tools, control, theirs)
        theirs.close()
        self._boxes[name] = Box(pid, groups, ours, None, "")
        self._poll.register(ours, select.POLLIN)

    def _image(self, wanted: wire.Body, *, view: bool) -> build.Image:
        """What the manager names by its folders below the images, over the host's userland or a root of its own."""
        assert self._tools is not None
        layers = [f"{userland.IMAGES}/{layer}" for layer in wanted["layers"]]
        if wanted["base"] is None:
            lowers = {name: [f"{layer}/{name}" for layer in layers] for name in ("usr", "etc", "root")}
            for name in ("usr", "etc"):
                lowers[name].append(f"/{name}")
            return build.Image(lowers, list(self._tools.userland.links), False, [])
        root = f"{userland.IMAGES}/{wanted['base']}"
        lowers = {name: [*(f"{layer}/{name}" for layer in layers), f"{root}/{name}"] for name in wanted["systems"]}
        lowers["root"] = [*(f"{layer}/root" for layer in layers), root]
        links = [(name, target) for name, target in wanted["links"]]
        return build.Image(lowers, links, True, list(changes.RECORDS) if view else [])

    def _mounts(self, name: str | None) -> int | None:
        if name is None:
            return None
        box = self._boxes.get(name)
        if box is None or box.mounts is None:
            raise OSError(0, f"there is no box {name} to start from")
        return box.mounts

    def _seal(self, name: str, paths: list[str]) -> wire.Body:
        """Makes folders of a box read-only from outside; the answer."""
        if self._tools is None:  # no mounts of its own: who seals must look whether it held
            return {}
        try:
            mounts = self._mounts(name)
            pid = os.fork()
        except OSError as error:
            return server.describe(error)
        if pid == 0:
            self._make_read_only(mounts, paths)
        _, status = os.waitpid(pid, 0)
        return {} if status == 0 else {"errno": os.waitstatus_to_exitcode(status), "error": f"{paths}: not sealed"}

    def _make_read_only(self, mounts: int | None, paths: list[str]) -> None:
        """In the child. Never returns; exits with the error number."""
        try:
            assert mounts is not None, "a box is named"
            build.make_read_only(mounts, paths)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
        except BaseException:
            os._exit(1)

    def _live_in_box(self, order: build.Order, tools: build.Tools, control: int, sync: socket.socket) -> None:
        """In the child. Never returns: its end is the end of the box."""
        try:
            manager = socket.socket(fileno=os.dup(control))
            build_needs = [manager.fileno(), sync.fileno(), tools.own_mounts]
            build.keep_only([*build_needs, *(fd for fd in (order.system, order.over) if fd is not None)])
            try:
                handles = build.become_box(order, tools, sync)
            except OSError as error:
                wire.send(manager, {"id": 0, **server.describe(error)})
                os._exit(1)
            kernel.silence_streams()
            kept = [manager.fileno(), *handles.uppers.values(), handles.storage, handles.listener, handles.proxy]
            build.keep_only([fd for fd in kept if fd is not None])
            server.Server(manager, server.Place("", True, handles, order.image.links)).serve()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _start_plain(self, name: str, body: wire.Body, control: int) -> None:
        """A box without isolation: a folder, and a server that runs commands in it."""
        folder = f"{self._settings.staging}/{name}"
        if body["over"] is not None:
            _copy_folder(self._boxes[body["over"]].folder, folder, frozenset({*changes.PRISTINE, *changes.HIDDEN}))
        elif body["image"]["layers"]:  # the uppermost: a folder that was saved whole
            layer = body["image"]["layers"][0]
            _copy_folder(f"{self._settings.images}/{layer}/root", folder, frozenset())
        for inner in ("root", "tmp", "app"):
            os.makedirs(f"{folder}/{inner}", exist_ok=True)
        pid = os.fork()
        if pid == 0:
            try:
                manager = socket.socket(fileno=os.dup(control))
                build.keep_only([manager.fileno()])
                os.setsid()
                kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
                kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
                storage = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                handles = build.Handles({}, None, storage, None, None)
                server.Server(manager, server.Place(folder, False, handles, ())).serve()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        self._boxes[name] = Box(pid, [], None, None, folder)

    def _map_users(self, name: str, box: Box, sync: socket.socket) -> None:
        """A box asks once, when its mounts stand; its end closes the socket too."""
        self._poll.unregister(sync)
        asked = wire.receive(sync)
        mounts = None
        if asked is not None:
            _, (mounts,) = asked
            assert self._tools is not None
            first_uid = self._tools.userland.root_uid
            userland.write_maps(box.pid, first_uid, self._settings.uid_count if first_uid else 1)
            sync.send(b"mapped")
        sync.close()
        self._boxes[name] = box._replace(sync=None, mounts=mounts)

    def _kill(self, box: Box) -> None:
        os.kill(box.pid, signal.SIGTERM if box.folder else signal.SIGKILL)

    def _reap(self) -> None:
        ended = processes.reap_dead()
        if ended:
            by_pid = {box.pid: name for name, box in self._boxes.items()}
            for pid, code in ended.items():
                if pid in by_pid:
                    self._forget(by_pid[pid], code)
        if self._busy_groups:
            self._busy_groups = cgroups.remove(self._busy_groups)

    def _forget(self, name: str, code: int) -> None:
        box = self._boxes.pop(name)
        if box.sync is not None:
            self._poll.unregister(box.sync)
            box.sync.close()
        if box.mounts is not None:
            os.close(box.mounts)
        kills = self._oom_kills(name)
        self._busy_groups += cgroups.remove(box.groups)
        if box.folder:
            trees.remove(box.folder)
        self._tell({"gone": name, "exit": code, "oom_kills": kills})

    def _oom_kills(self, name: str) -> int:
        """Of a box that has ended, while its groups are there; 0 where its own limit was never reached."""
        if self._tools is None or self._tools.userland.hierarchies is None:
            return 0
        whose = (self._tools.userland.hierarchies, self._settings.lease, name)
        try:
            return cgroups.oom_kills(*whose) if cgroups.reached_limit(*whose) else 0
        except OSError:  # a sweep took this backend for gone, and was faster
            return 0

    def end_all(self) -> None:
        """Every box, and the groups that held them."""
        for box in self._boxes.values():
            self._kill(box)
        while self._boxes or self._busy_groups:
            self._poll.poll(20)
            self._reap()
        if self._lease_groups is not None:
            cgroups.remove(self._lease_groups.groups(self._settings.lease))


def _copy_folder(source: str, target: str, without: frozenset[str]) -> None:
    """A box's folder for another one, but for names at its top that a view does not show."""
    os.mkdir(target)
    inner = os.open(source, trees.FOLDER)
    try:
        outer = os.open(target, trees.FOLDER)
        try:
            trees.copy(inner, outer, _copy_leaf, _copy_mode, without)
        finally:
            os.close(outer)
    finally:
        os.close(inner)


def _copy_leaf(source: int, name: str, info: os.stat_result, target: int) -> None:
    """Files, links and pipes."""
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    elif stat.S_ISFIFO(info.st_mode):
        os.mkfifo(name, stat.S_IMODE(info.st_mode), dir_fd=target)
    elif stat.S_ISREG(info.st_mode):
        old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
        new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            trees.copy_bytes(old, new)
            _copy_mode(old, new)
        finally:
            os.close(old)
            os.close(new)


def _copy_mode(source: int, target: int) -> None:
    info = os.fstat(source)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def main(control_fd: int) -> None:
    """Serve the manager at the other end of `control_fd`."""
    manager = socket.socket(fileno=control_fd)
    received = wire.receive(manager)
    if received is None:
        sys.exit(1)
    zygote = Zygote(manager, Settings(**received[0]))
    try:
        report = zygote.prepare()
    except OSError as error:
        zygote.end_all()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(manager, {"error": str(error)})
        sys.exit(1)
    try:
        wire.send(manager, {"ready": report})
    except (BrokenPipeError, ConnectionResetError):  # it was killed, and perhaps swept: what came since is ours
        zygote.end_all()
        return
    zygote.serve()
