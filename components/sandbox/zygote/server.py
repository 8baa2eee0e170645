"""The first process of a box: runs commands, moves files, opens terminals, ends processes, at the manager's word.

It lives inside the box (its root, its users, its limits, its filter), so a path it is given resolves as a program of
the box would resolve it: a symlink the agent planted leads nowhere outside. It is not dumpable and, as pid 1, deaf to
signals from inside. When the manager's socket closes it ends, and the kernel ends everything else in the namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from . import changes, processes, seccomp, users, wire
from .build import Handles

DEFAULT_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]
OOM_PREFERENCE = "500"
"""Programs are killed for memory before pid 1, unless they lower it: to 0 they may, which is pid 1's (`BoxSpent`)."""
CHUNK = 1 << 20
END_PATIENCE_S = 5.0
MARK = "LONGSHELL_EXEC"
LOGS, LOG_FOLDER = "logs", "/logs/verifier"
LATE_S = 0.02
"""What still runs has so long to show that it writes what its command had written: some ticks of the files' clock."""
ENDING_S = 0.1
"""What ends by itself within it was ending: a command may be over before its last child (tar's, that unpacks) is."""


Operation = Callable[[wire.Body, list[int]], None]


class Place(NamedTuple):
    """Where the server runs: `prefix` is empty in a box with its own root, else the folder that stands for it.

    `links` are those of the root that a new box has.
    """

    prefix: str
    has_namespace: bool
    handles: Handles
    links: Sequence[tuple[str, str]]


class Running(NamedTuple):
    """A started program: the request it answers, its deadline and mark (commands only)."""

    request: int
    deadline: float | None
    mark: bytes


def describe(error: BaseException) -> wire.Body:
    """An error as the manager understands it."""
    if not isinstance(error, OSError):
        return {"errno": errno.EINVAL, "error": str(error)}
    return {"errno": error.errno or errno.EINVAL, "error": error.strerror or str(error)}


class Server:
    """Serves one box until its manager or its zygote is gone."""

    default_signals = DEFAULT_SIGNALS
    """What programs begin with, whatever this process does about them."""

    def __init__(self, control: socket.socket, place: Place) -> None:
        self._control = control
        self._place = place
        self._running: dict[int, Running] = {}
        self._timed_out: set[int] = set()
        self._last_end = 0
        self._ended = False
        self._before = self._standing()
        self._refused: dict[str, None] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Until the socket closes. The box is ready when the first message goes out."""
        self._listen_to_signals()
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        listener = self._place.handles.listener
        if listener is not None:
            poll.register(listener, select.POLLIN)
        self._greet()
        while not self._ended:
            ready = {fd for fd, _ in poll.poll(self._patience_ms())}
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if listener is not None and listener in ready:
                self._refuse(listener)
            self._report_ended(processes.reap_dead())
            self._end_overdue()
            if self._control.fileno() in ready:
                received = wire.receive(self._control)
                if received is None:
                    break
                self._handle(*received)
        if not self._place.has_namespace:
            processes.end_descendants()

    def _greet(self) -> None:
        """The box is ready; with it goes the socket on which its proxy listens."""
        listening = self._place.handles.proxy
        self._reply({"id": 0}, () if listening is None else (listening,))
        if listening is not None:
            os.close(listening)

    def _refuse(self, listener: int) -> None:
        """Answer one program's call, and keep what it was."""
        asked = seccomp.question(listener)
        if asked is None:
            return
        identity, call, pid = asked
        if len(self._refused) < changes.MOST_TOLD:
            self._refused[f"refused {call} of {' '.join(processes.names({pid}))}"] = None
        seccomp.refuse(listener, identity)

    def _listen_to_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self._place.has_namespace else self._stop)

    def _stop(self, *_: object) -> None:
        self._ended = True

    def _reply(self, body: wire.Body, fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self._control, body, fds)
        except (BrokenPipeError, ConnectionResetError):
            self._ended = True

    def _patience_ms(self) -> float | None:
        deadlines = [running.deadline for running in self._running.values() if running.deadline is not None]
        return None if not deadlines else max(0.0, min(deadlines) - time.monotonic()) * 1000 + 1

    def _report_ended(self, ended: dict[int, int]) -> None:
        for pid, code in ended.items():
            running = self._running.pop(pid, None)
            if running is not None:
                self._last_end = time.time_ns()
                late = pid in self._timed_out
                self._timed_out.discard(pid)
                self._reply({"id": running.request, "exit": code, "timed_out": late})

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for pid, running in list(self._running.items()):
            if running.deadline is not None and running.deadline <= now:
                self._timed_out.add(pid)
                self._running[pid] = running._replace(deadline=None)
                processes.end_command(pid, running.mark, self._running.keys() - {pid})
        if self._timed_out:
            self._report_ended(processes.reap_dead())

    def _operations(self) -> dict[str, Operation]:
        return {
            "exec": self._exec,
            "terminal": self._terminal,
            "put": self._put,
            "get": self._get,
            "end": self._end,
            "furnished": self._furnished,
            "layers": self._layers,
        }

    def _handle(self, body: wire.Body, fds: list[int]) -> None:
        """The boundary at which a request's failure becomes its answer."""
        try:
            self._operations()[body["op"]](body, fds)
        except (OSError, ValueError) as error:
            self._reply({"id": body["id"], **describe(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _path(self, path: str) -> str:
        return self._place.prefix + path if path.startswith("/") else path

    def _spawn(self, body: wire.Body, actions: list[users.Action]) -> int:
        """Start argv in its own session; the caller's actions set up its standard streams."""
        env: dict[str, str] = body["env"]
        argv: list[str] = body["argv"]
        who = users.find(body["user"]) if body["user"] else None
        if who is not None:
            env = {**env, "HOME": who.home, "USER": who.name}
        program = find_program(argv[0], env.get("PATH", ""))
        os.chdir(self._path(body["cwd"]))
        try:
            if who is not None:
                pid = users.spawn(who, program, argv, env, actions, self.default_signals)
            else:
                pid = os.posix_spawn(
                    program, argv, env, file_actions=actions, setsid=True, setsigdef=self.default_signals, setsigmask=[]
                )
        finally:
            os.chdir("/")
        try:
            with open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write(OOM_PREFERENCE)
        except OSError:  # it has ended already, or it runs as another user
            return pid
        return pid

    def _exec(self, body: wire.Body, fds: list[int]) -> None:
        request = int(body["id"])
        places: list[int] = body["places"]
        mark = f"{MARK}={request}"
        body["env"][MARK] = str(request)
        actions: list[users.Action] = []
        if 0 not in places:
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
        sources: list[int] = []
        try:
            for fd, place in zip(fds, places, strict=True):
                sources.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(places) + 1))  # no source is another's place
                actions.append((os.POSIX_SPAWN_DUP2, sources[-1], place))
            pid = self._spawn(body, actions)
        finally:
            for source in sources:
                os.close(source)
        self._running[pid] = Running(request, time.monotonic() + body["timeout_s"], mark.encode())

    def _terminal(self, body: wire.Body, fds: list[int]) -> None:
        master, slave = os.openpty()
        try:
            size = struct.pack("HHHH", body["rows"], body["columns"], 0, 0)
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
            attributes = termios.tcgetattr(slave)
            if not body["echo"]:
                attributes[3] &= ~termios.ECHO
            attributes[0] |= termios.IUTF8 if hasattr(termios, "IUTF8") else 0x4000
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
            # Opening it as a session leader makes it the controlling terminal.
            source = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0)
            if body["user"]:
                os.chown(os.ttyname(slave), users.find(body["user"]).uid, -1)
            pid = self._spawn(body, [source, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)])
            self._running[pid] = Running(int(body["exit_id"]), None, b"")
            self._reply({"id": body["id"]}, (master,))
        finally:
            os.close(master)
            os.close(slave)

    def _put(self, body: wire.Body, fds: list[int]) -> None:
        for path, kind, mode, name, content in wire.unpack_files(wire.read_file(fds[0])):
            place = self._contained(path, follow=False)
            if name and os.path.isdir(place):
                place = f"{place}/{name}"
            write_entry(place, kind, mode, content)
        self._reply({"id": body["id"]})

    def _layers(self, body: wire.Body, fds: list[int]) -> None:
        """Hands out the folders that hold what was changed, by name of what they lie over."""
        layers = {**self._place.handles.uppers, "root": self._place.handles.storage}
        self._reply({"id": body["id"], "names": list(layers)}, tuple(layers.values()))

    def _get(self, body: wire.Body, fds: list[int]) -> None:
        path = self._contained(body["path"], follow=True)
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            copy_limited(source, fds[0], int(body["limit"]))
        finally:
            os.close(source)
        self._reply({"id": body["id"]})

    def _contained(self, path: str, *, follow: bool) -> str:
        """The real place of a box path; without an own root, links that lead out of the folder are refused."""
        if not path.startswith("/"):
            raise OSError(errno.EINVAL, "paths in a box are absolute", path)
        if not self._place.prefix:
            return path
        parent, name = os.path.split(self._place.prefix + path)
        real = os.path.realpath(parent)
        if f"{real}/".startswith(f"{self._place.prefix}/") and not (follow and os.path.islink(f"{real}/{name}")):
            return f"{real}/{name}"
        raise OSError(errno.EXDEV, "leads out of the box", path)

    def _furnished(self, body: wire.Body, fds: list[int]) -> None:
        """What stands here now is the image's, and nothing that the box changed."""
        self._before = self._standing()
        self._reply({"id": body["id"]})

    def _standing(self) -> frozenset[str]:
        return frozenset([*self._changed(), *changes.at_home(self._place.prefix)])

    def _changed(self) -> Iterator[str]:
        return changes.changed(self._place.prefix, self._place.handles.uppers, self._place.links)

    def _end(self, body: wire.Body, fds: list[int]) -> None:
        """Ends every process; tells which of them nobody had asked for, and what the box changed of its system."""
        watched, last_end = [LOGS] if body.get("last") else [], self._last_end
        left = self._left_running()
        if self._place.has_namespace:
            processes.end_namespace()
        else:
            processes.end_descendants()
        deadline = time.monotonic() + END_PATIENCE_S
        pause = 0.0002
        while True:
            self._report_ended(processes.reap_dead())
            if not processes.descendants(os.getpid(), processes.listing()):
                break
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "processes of the box do not end")
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        changed = [*self._refused, *changes.told(self._changed(), self._before)]
        doubtful = changes.doubtful(path for path in changes.at_home(self._place.prefix) if self._is_own(path))
        said = {"ended": changes.told(iter(left)), "changed": changed, "doubtful": doubtful}
        late = changes.told(changes.since(last_end, self._place.prefix, {}, watched))
        if watched and not _is_folder(self._path(LOG_FOLDER)):
            late.insert(0, f"replaced {LOG_FOLDER}")
        self._reply({"id": body["id"], **said, "since": self._changed_since(body), "late": late})

    def _left_running(self) -> list[str]:
        """Programs that run, that nobody had asked for, and that do not end."""
        deadline = time.monotonic() + ENDING_S
        while True:
            self._report_ended(processes.reap_dead())
            left = processes.names(processes.descendants(os.getpid(), processes.listing()) - self._running.keys())
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(LATE_S)

    def _changed_since(self, body: wire.Body) -> list[str]:
        since = body.get("since")
        if since is None:
            return []
        return changes.told(changes.since(since, self._place.prefix, self._place.handles.uppers, body["folders"]))

    def _is_own(self, path: str) -> bool:
        return path not in self._before or changes.is_in(self._place.handles.root, path)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def find_program(name: str, search: str) -> str:
    """Where `name` is on the box's PATH."""
    if "/" in name:
        return name
    for folder in search.split(":"):
        candidate = f"{folder}/{name}"
        if folder and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(errno.ENOENT, "command not found", name)


def write_entry(path: str, kind: str, mode: int, content: memoryview) -> None:
    """Create one entry. A file replaces what has its name (never writes through a link) and appears whole."""
    if kind == "directory":
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        return
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    temporary = f"{parent}/.{name[:64]}.put"
    try:
        if kind == "symlink":
            os.symlink(bytes(content), temporary)
        else:
            _write_file(temporary, mode, content)
        os.rename(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def _write_file(path: str, mode: int, content: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while content:
            content = content[os.write(fd, content) :]
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def copy_limited(source: int, target: int, limit: int) -> None:
    """Copy a file of at most `limit` bytes."""
    left = limit
    while True:
        part = os.read(source, min(CHUNK, left + 1))
        if not part:
            return
        left -= len(part)
        if left < 0:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes")
        while part:
            part = part[os.write(target, part) :]
