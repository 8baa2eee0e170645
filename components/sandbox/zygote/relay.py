"""The first process of a box that an engine runs: the server of every box, at the other end of the engine's stream.

The manager's messages come on stdin, a frame each, and the answers go to stdout: what a program writes is kept here,
and a terminal read here, because descriptors do not travel over a stream. Programs of the box have neither of the two,
and cannot look into this process. Invariant: the end of stdin, whatever brought it about, is the end of the box.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import socket
import threading
import time
import traceback
from typing import Any, NamedTuple

from . import changes, frames, kernel, processes, seal, seccomp, server, transfer, tty, tunnel, users, wire
from .build import Handles
from .headtail import READ_BYTES, HeadTail
from .userland import TOP_LINKS

OWN_CAPABILITIES = {"SETPCAP": 8, "LINUX_IMMUTABLE": 9}
"""To seal folders; the first, to keep the second from every program."""
NOBODY_GROUP = 65534
GROUP_FILES = (("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill "), ("/sys/fs/cgroup/memory.events", "oom_kill "))
DRAIN_READS = 64
NOTHING = -1
"""No folder holds what was changed here: the engine tells."""
WINDOW_BYTES = 1 << 19
"""What of a terminal may be on its way; the rest waits until the manager has taken that."""


class Pipe:
    """What a command writes to one descriptor."""

    def __init__(self, limit: int) -> None:
        self.kept = HeadTail(limit)
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reading, False)

    def read(self) -> bool:
        """False at the end of the stream, or when there is nothing for now."""
        try:
            data = os.read(self.reading, READ_BYTES)
        except BlockingIOError:
            return False
        self.kept.add(data)
        return bool(data)


class Command(NamedTuple):
    """The pipes of a running command, by descriptor."""

    pipes: dict[int, Pipe]


class Screen:
    """A terminal's master."""

    def __init__(self, master: int, number: int) -> None:
        os.set_blocking(master, False)
        self.master = master
        self.slave = tty.peer(master)
        self.number = number
        self.window = WINDOW_BYTES
        self.group: int | None = None
        self.typed = bytearray()


class BoxServer(server.Server):
    """The server of every box; here it also starts what no program may look into, and ends who fills the disk."""

    def __init__(self, control: socket.socket, place: server.Place) -> None:
        super().__init__(control, place)
        self._guarded: set[int] = set()

    default_signals = [number for number in server.DEFAULT_SIGNALS if number != signal.SIGXFSZ]
    """A file that grows beyond the box's disk is an error that programs are told, not their end."""

    def _spawn(self, body: wire.Body, actions: list[users.Action]) -> int:
        """Guarded: with another effective group than its real one. The kernel lets nobody look into such a process,
        and bash, which gives the group up at once, stays like that, while what it runs is as any other program."""
        if not body["guarded"]:
            return super()._spawn(body, actions)
        os.setresgid(-1, NOBODY_GROUP, -1)
        try:
            pid = super()._spawn(body, actions)
        finally:
            os.setresgid(-1, 0, -1)
        self._guarded.add(pid)
        return pid

    def _operations(self) -> dict[str, server.Operation]:
        return {**super()._operations(), "curb": self._curb}

    def _curb(self, body: wire.Body, fds: list[int]) -> None:
        """End every program, or, with `spare`, all but shells at terminals and what is guarded; tells who that was.

        What is spared goes on as it would after any other end of what it had started.
        """
        spared: set[int] = set()
        if body["spare"]:
            spared = {pid for pid, running in self._running.items() if pid in self._guarded or running.deadline is None}
        ended: dict[str, None] = {}
        for _ in range(processes.ROUNDS):
            victims = processes.descendants(os.getpid(), processes.listing()) - spared
            ended |= dict.fromkeys(processes.names(victims))
            if spared:
                processes.kill(victims)
            else:
                processes.end_namespace()
            self._report_ended(processes.reap_dead())
            if not processes.names(victims):
                break
            time.sleep(processes.PAUSE_S)
        self._reply({"id": body["id"], "ended": changes.told(iter(ended))})


class Relay:
    """Between the stream and the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._frames = frames.Unpacker()
        self._waiting: list[frames.Frame] = []
        self._commands: dict[int, Command] = {}
        self._pipes: dict[int, Pipe] = {}
        self._reads: dict[int, int] = {}
        self._terminals: dict[int, int] = {}
        self._screens: dict[int, Screen] = {}
        self._masters: dict[int, Screen] = {}
        self._tunnels = tunnel.Tunnels(self._poll, self._say)

    def run(self) -> None:
        """Until stdin or the server ends; the boundary at which a mistake in here ends the box."""
        try:
            self._poll.register(0, select.POLLIN)
            self._poll.register(self._control, select.POLLIN)
            while self._turn():
                pass
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _turn(self) -> bool:
        for fd, event in self._poll.poll():
            if fd == 0:
                data = os.read(0, 1 << 20)
                if not data:
                    return False
                self._waiting += self._frames.feed(data)
                while self._waiting:
                    self._handle(*self._waiting.pop(0))
            elif fd == self._control.fileno():
                received = wire.receive(self._control)
                if received is None:
                    return False
                self._answer(*received)
            elif fd in self._pipes:
                if not self._pipes[fd].read():
                    self._forget(fd)
            elif self._tunnels.takes(fd, event):
                continue
            elif fd in self._masters:
                self._on_master(self._masters[fd], event)
        return True

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._pipes[fd]

    def _say(self, body: dict[str, Any], blob: bytes = b"") -> None:
        left = memoryview(frames.pack(body, blob))
        while left:
            left = left[os.write(1, left) :]

    def _handle(self, body: dict[str, Any], blob: bytes) -> None:
        """The boundary at which a request's failure becomes its answer."""
        operations = {
            "exec": self._exec, "terminal": self._terminal, "put": self._put, "get": self._get,
            "type": self._type, "prompted": self._prompted, "idle": self._idle, "taken": self._taken,
            "hang_up": self._hang_up, "seal": self._seal, "pack": self._pack, "unpack": self._unpack,
            "ping": self._ping, "listen": self._listen, "net": self._net, "net_end": self._net, "net_taken": self._net,
            "net_drop": self._net,
        }  # fmt: skip
        try:
            operation = operations.get(body["op"])
            if operation is None:
                wire.send(self._control, body)
            else:
                operation(body, blob)
        except (OSError, ValueError) as error:
            if "id" not in body:
                raise
            self._say({"id": body["id"], **server.describe(error)})

    def _ping(self, body: dict[str, Any], blob: bytes) -> None:
        self._say({"id": body["id"]})

    def _listen(self, body: dict[str, Any], blob: bytes) -> None:
        self._tunnels.listen(body["port"])
        self._say({"id": body["id"]})

    def _net(self, body: dict[str, Any], blob: bytes) -> None:
        number = body["net"]
        if body["op"] == "net":
            self._tunnels.send(number, body["id"], blob)
        elif body["op"] == "net_end":
            self._tunnels.finish(number)
        elif body["op"] == "net_taken":
            self._tunnels.taken(number, body["bytes"])
        else:
            self._tunnels.drop(number)

    def _exec(self, body: dict[str, Any], blob: bytes) -> None:
        limit = body.pop("limit")
        pipes = {place: Pipe(size) for place, size in ((1, limit), (2, limit)) if place == 1 or not body["merged"]}
        places = {place: pipe.writing for place, pipe in pipes.items()}
        if body["merged"]:
            places[2] = pipes[1].writing
        own = []
        if body.pop("fed"):
            places[0] = wire.memory_file(blob)
            own.append(places[0])
        if body["secret"] is not None:
            pipes[body["report_fd"]] = report = Pipe(body["report_limit"])
            places[body["report_fd"]] = report.writing
            secret = os.pipe2(os.O_CLOEXEC)
            os.write(secret[1], body.pop("secret").encode())
            os.close(secret[1])
            places[body["secret_fd"]] = secret[0]
            own.append(secret[0])
        try:
            wire.send(self._control, {**body, "places": list(places)}, list(places.values()))
        finally:
            for fd in (*own, *(pipe.writing for pipe in pipes.values())):
                os.close(fd)
        self._commands[body["id"]] = Command(pipes)
        for pipe in pipes.values():
            self._pipes[pipe.reading] = pipe
            self._poll.register(pipe.reading, select.POLLIN)

    def _put(self, body: dict[str, Any], blob: bytes) -> None:
        held = wire.memory_file(blob)
        try:
            wire.send(self._control, body, [held])
        finally:
            os.close(held)

    def _get(self, body: dict[str, Any], blob: bytes) -> None:
        held = os.memfd_create("longshell")
        self._reads[body["id"]] = held
        wire.send(self._control, body, [held])

    def _terminal(self, body: dict[str, Any], blob: bytes) -> None:
        self._terminals[body["id"]] = body["exit_id"]
        wire.send(self._control, body)

    def _answer(self, body: dict[str, Any], fds: list[int]) -> None:
        """What the server says, with what was kept for it."""
        number = body["id"]
        command = self._commands.pop(number, None)
        if command is not None:
            self._end_command(body, command)
            return
        held = self._reads.pop(number, None)
        if held is not None:
            self._say(body, b"" if "errno" in body else wire.read_file(held))
            os.close(held)
            return
        exit_id = self._terminals.pop(number, None)
        if exit_id is not None and fds:
            screen = Screen(fds.pop(), exit_id)
            self._screens[exit_id] = self._masters[screen.master] = screen
            self._poll.register(screen.master, select.POLLIN)
        ended = self._screens.get(number)
        if ended is not None:
            for _ in range(DRAIN_READS):
                if not self._read_master(ended):
                    break
        self._say(body)

    def _end_command(self, body: dict[str, Any], command: Command) -> None:
        sizes = []
        parts = []
        for place, pipe in sorted(command.pipes.items()):
            for _ in range(DRAIN_READS if pipe.reading in self._pipes else 0):
                if not pipe.read():
                    break
            if pipe.reading in self._pipes:
                self._forget(pipe.reading)
            os.close(pipe.reading)
            parts.append(pipe.kept.contents())
            sizes.append([place, len(parts[-1]), pipe.kept.dropped])
        self._say({**body, "parts": sizes, "oom_kills": oom_kills()}, b"".join(parts))

    def _on_master(self, screen: Screen, event: int) -> None:
        if event & select.POLLOUT:
            self._write_master(screen)
        if event & ~select.POLLOUT:
            self._read_master(screen)

    def _read_master(self, screen: Screen) -> bool:
        if screen.master not in self._masters or screen.window <= 0:
            return False
        try:
            data = os.read(screen.master, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: every program has closed it
            self._close(screen)
            self._say({"tty": screen.number, "ended": True})
            return False
        screen.window -= len(data)
        self._watch(screen)
        self._say({"tty": screen.number}, data)
        return True

    def _watch(self, screen: Screen) -> None:
        wanted = (select.POLLIN if screen.window > 0 else 0) | (select.POLLOUT if screen.typed else 0)
        if wanted:
            self._poll.register(screen.master, wanted)
        else:  # a hang-up would be told again and again
            self._unwatch(screen)

    def _unwatch(self, screen: Screen) -> None:
        try:
            self._poll.unregister(screen.master)
        except KeyError:
            return

    def _write_master(self, screen: Screen) -> None:
        try:
            while screen.typed:
                del screen.typed[: os.write(screen.master, screen.typed)]
        except BlockingIOError:
            pass
        except OSError:
            screen.typed.clear()
        self._watch(screen)

    def _close(self, screen: Screen) -> None:
        self._unwatch(screen)
        del self._screens[screen.number], self._masters[screen.master]
        os.close(screen.master)
        os.close(screen.slave)

    def _type(self, body: dict[str, Any], blob: bytes) -> None:
        """Answered with whether some of it waits for a program to read; whoever loses patience has that dropped."""
        screen = self._screens.get(body["tty"])
        if screen is not None:
            if body["give_up"]:
                screen.typed.clear()
            screen.typed += blob
            self._write_master(screen)
        self._say({"id": body["id"], "waiting": screen is not None and bool(screen.typed)})

    def _prompted(self, body: dict[str, Any], blob: bytes) -> None:
        screen = self._screens.get(body["tty"])
        if screen is None:
            return
        if screen.group is None:
            screen.group = os.tcgetpgrp(screen.master)
        if body["silent"]:
            tty.silence(screen.slave)

    def _idle(self, body: dict[str, Any], blob: bytes) -> None:
        screen = self._screens.get(body["tty"])
        idle = screen is not None and not screen.typed and tty.is_idle(screen.master, screen.slave, screen.group)
        self._say({"id": body["id"], "idle": idle})

    def _taken(self, body: dict[str, Any], blob: bytes) -> None:
        screen = self._screens.get(body["tty"])
        if screen is not None:
            screen.window += body["bytes"]
            self._watch(screen)

    def _hang_up(self, body: dict[str, Any], blob: bytes) -> None:
        screen = self._screens.get(body["tty"])
        if screen is not None:
            self._close(screen)

    def _seal(self, body: dict[str, Any], blob: bytes) -> None:
        for path in body["paths"]:
            seal.make_read_only(path)
        for path in body["systems"]:
            if os.path.isdir(path) and not os.path.islink(path):
                seal.keep_names(path)
        self._say({"id": body["id"], "now": time.clock_gettime_ns(changes.COARSE)})

    def _pack(self, body: dict[str, Any], blob: bytes) -> None:
        left = transfer.pack(body["paths"], body["folders"], lambda piece: self._say({"piece": body["id"]}, piece))
        self._say({"id": body["id"], "left": left})

    def _unpack(self, body: dict[str, Any], blob: bytes) -> None:
        transfer.remove(body["removed"])
        transfer.unpack(self._next_piece)
        self._say({"id": body["id"]})

    def _next_piece(self) -> bytes:
        """The next piece of what is unpacked; the manager says nothing else meanwhile. Empty at the end."""
        while not self._waiting:
            data = os.read(0, 1 << 20)
            if not data:
                os._exit(1)
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)[1]


def oom_kills() -> int:
    """How many processes of this box the kernel killed for memory so far; 0 where it does not tell."""
    for path, name in GROUP_FILES:
        try:
            with open(path) as file:
                found = [line.split()[1] for line in file if line.startswith(name)]
        except OSError:
            continue
        if found:
            return int(found[0])
    return 0


def main() -> None:
    """Become the first process of this box."""
    kernel.rename_process("init")
    os.umask(0o022)
    kernel.keep_to_oneself(OWN_CAPABILITIES)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listener = seccomp.install(seccomp.assemble(platform.machine())) if seccomp.supported() else None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    links = tuple((name, os.readlink(f"/{name}")) for name in TOP_LINKS if os.path.islink(f"/{name}"))
    threading.Thread(target=Relay(theirs).run, daemon=True).start()
    BoxServer(ours, server.Place("", True, Handles({}, None, NOTHING, listener, None), links)).serve()
    os._exit(0)
