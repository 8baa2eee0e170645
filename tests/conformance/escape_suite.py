"""What no box may let out, and what it must survive, on every isolating backend: two tables and their suites.

An attempt is a small program, run in a box with root's rights there. It says ESCAPED when it has got what its `success`
describes; whatever else it says or does is a failure to escape. A test module subclasses EscapeSuite with a `box` that
all attempts share (so that one that breaks it is found out by the next), and MisuseSuite with a `backend`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from components.errors import BoxSpent
from components.sandbox import Sandbox, SandboxBackend, SandboxSpec
from tests.conformance.sandbox_suite import sh, until_said

REPOSITORY = Path(__file__).parents[2]
SPEC = SandboxSpec(memory_mb=128, disk_mb=16, pids=64)
CALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    return libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
"""
"""x86_64's numbers are used below; another machine's calls of these numbers do no harm either."""


SWARM = """
import mmap, os, time
open('/proc/self/oom_score_adj', 'w').write('0')
for path in ('/dev/shm/x', '/tmp/x'):
    try:
        with open(path, 'wb') as file:
            while True: file.write(bytes(1 << 20))
    except OSError: pass
for _ in range(150):
    try:
        if os.fork() == 0:
            held = mmap.mmap(-1, 1 << 20); held.write(bytes(1 << 20)); time.sleep(60)
    except OSError: time.sleep(.02)
"""
"""Takes all memory without any process of it having more than the box's first one."""


@dataclass(frozen=True)
class Attempt:
    """One try to get out. `{repository}`, `{port}`, `{name}` and `{pid}` stand for things of the host."""

    name: str
    program: str
    success: str
    python: bool = False


def shell(name: str, command: str, success: str) -> Attempt:
    """A command that has succeeded where it exits 0."""
    return Attempt(name, f"if {command} 2>&1; then echo ESCAPED; fi", success)


def call(name: str, condition: str, success: str) -> Attempt:
    """A system call; `condition` is a Python expression that holds where it was let through."""
    return Attempt(name, f"{CALL}\nif {condition}: print('ESCAPED')", success, python=True)


def python(name: str, program: str, success: str) -> Attempt:
    return Attempt(name, program, success, python=True)


ATTEMPTS = (
    # Mounts, and what undoes them.
    shell("mount-tmpfs", "mount -t tmpfs x /mnt", "a file system of its own making"),
    shell("mount-proc", "mount -t proc p /mnt", "a /proc without the hidden files"),
    shell("mount-cgroup", "mount -t cgroup -o memory c /mnt || mount -t cgroup2 c /mnt", "control groups to change"),
    shell("mount-bind", "mount --bind / /mnt", "a second way to its own root"),
    shell("remount-usr", "mount -o remount,rw /usr", "the system's mount, changed"),
    shell("umount-proc-sys", "umount /proc/sys", "a writable /proc/sys"),
    shell("umount-usr", "umount -l /usr", "what lies below /usr"),
    shell("losetup", "losetup -f", "a loop device"),
    call("fsopen", "call(430, b'tmpfs', 0) >= 0", "the new way to mount"),
    call("open-tree", "call(428, -100, b'/', 1) >= 0", "a detached copy of a mount"),
    # Namespaces.
    shell("unshare-user", "unshare -Ur true", "a user namespace, with every capability in it"),
    shell("unshare-mount", "unshare -m true", "a mount namespace"),
    shell("unshare-net", "unshare -n true", "a network namespace"),
    shell("nsenter", "nsenter -t 1 -m true", "another namespace"),
    call("clone-user", "call(56, 0x10000000 | 17, 0, 0, 0, 0) > 0", "a child in a user namespace"),
    call("clone3", "call(435, ctypes.create_string_buffer(88), 88) != -1", "a call whose flags nobody can inspect"),
    python("setns", f"{CALL}\nfd = os.open('/proc/1/ns/mnt', 0)\nif call(308, fd, 0) == 0: print('ESCAPED')", "its"),
    # Devices and kernel memory.
    shell("mknod-disk", "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk", "a disk of the host"),
    shell("read-disk", "head -c 1 /dev/vda || head -c 1 /dev/sda || head -c 1 /dev/nvme0n1", "a disk of the host"),
    shell("read-memory", "head -c 1 /dev/mem || head -c 1 /dev/kmem || head -c 1 /dev/port", "physical memory"),
    Attempt("read-kcore", "[ -n \"$(head -c 9 /proc/kcore 2>&-)\" ] && echo ESCAPED", "the kernel's memory"),
    shell("kvm-fuse-tun", "ls /dev/kvm || ls /dev/fuse || ls /dev/net/tun", "a device that drives the kernel"),
    shell("chmod-null", "chmod 600 /dev/null", "a device of all boxes, changed"),
    call("iopl", "call(172, 3) == 0", "the machine's ports"),
    # The kernel's settings.
    shell("core-pattern", "echo '|/tmp/x' > /proc/sys/kernel/core_pattern", "a program that the host's kernel starts"),
    shell("modprobe", "echo /tmp/x > /proc/sys/kernel/modprobe", "a program that the host's kernel starts"),
    shell("sysrq", "echo h > /proc/sysrq-trigger", "keys of the host's console"),
    shell("drop-caches", "echo 3 > /proc/sys/vm/drop_caches", "the host's caches"),
    shell("ip-forward", "echo 1 > /proc/sys/net/ipv4/ip_forward", "a router"),
    shell("binfmt", "echo :x:E::x::/tmp/x: > /proc/sys/fs/binfmt_misc/register", "an interpreter of the host's"),
    shell("hostname", "hostname other", "another name"),
    shell("clock", "date -s 2001-01-01", "the host's clock"),
    shell("dmesg", "dmesg", "the kernel's log"),
    shell("swapon", "swapon /etc/passwd", "swap"),
    shell("module", "rmmod x || insmod /etc/passwd", "code in the kernel"),
    shell("debugfs", "ls /sys/kernel/debug/ /sys/kernel/tracing/", "the kernel's insides"),
    call("bpf", "call(321, 0, ctypes.create_string_buffer(128), 128) >= 0", "a program in the kernel"),
    call("perf", "call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0", "the kernel's counters"),
    call("keyctl", "call(250, 0, -3, 1) >= 0", "keyrings, which no namespace parts"),
    call("io-uring", "call(425, 8, ctypes.create_string_buffer(256)) >= 0", "calls that no filter sees"),
    call("userfaultfd", "call(323, 1) >= 0", "a tool of kernel exploits"),
    call("kexec", "call(246, 0, 0, 0, 0) == 0", "another kernel"),
    call("name-to-handle", "call(303, -100, b'/', b'\\x80' + bytes(255), ctypes.create_string_buffer(8), 0) == 0",
         "the number of a file"),
    call("open-by-handle", "call(304, os.open('/', 0), b'\\x08' + bytes(3) + b'\\x01' + bytes(60), 0) >= 0 or "
         "ctypes.get_errno() not in (1, 38)", "any file of the file system, by number"),
    # Other processes, and more rights.
    shell("pid-1-memory", "head -c 1 /proc/1/mem", "the first process's memory"),
    shell("pid-1-files", "ls /proc/1/fd/ && readlink /proc/1/fd/3", "the first process's sockets"),
    shell("pid-1-root", "ls /proc/1/root/", "the first process's root"),
    shell("pid-1-environment", "[ -n \"$(tr -d '\\0' < /proc/1/environ)\" ]", "what it was started with"),
    call("pid-1-ptrace", "libc.ptrace(16, 1, 0, 0) == 0", "the first process, traced"),
    call("pid-1-read", "call(310, 1, ctypes.create_string_buffer(16), 1, ctypes.create_string_buffer(16), 1, 0) > 0",
         "the first process's memory"),
    shell("host-process", "kill -0 {pid}", "a process of the host"),
    shell("capabilities", "setpriv --bounding-set +all --inh-caps +all true", "capabilities it has not"),
    shell("priority", "nice -n -5 sh -c '[ $(nice) -lt 0 ]'", "precedence over the host"),
    shell("real-time", "chrt -f 1 true", "precedence over the kernel's own threads"),
    shell("oom-score", "echo -1000 > /proc/self/oom_score_adj", "memory that is taken from others first"),
    shell("cgroup", "mkdir /sys/fs/cgroup/x || ls /sys/fs/cgroup/*/release_agent", "its own limits"),
    # Files of the host.
    shell("host-files", "ls {repository}/pyproject.toml", "this repository"),
    shell("host-paths", "grep -F {repository} /proc/self/mountinfo /proc/1/cmdline", "where the host keeps it"),
    shell("host-shared-memory", "ls /dev/shm/{name}", "the host's shared memory"),
    python("chroot", """
import os
os.makedirs('/tmp/x', exist_ok=True); fd = os.open('/', 0); os.chroot('/tmp/x'); os.fchdir(fd)
for _ in range(64): os.chdir('..')
os.chroot('.')
if os.path.exists('{repository}') or os.path.exists('/box'): print('ESCAPED')
""", "what lies above its root"),
    # The network.
    python("host-loopback", """
import socket
for host in ('127.0.0.1', '::1'):
    try: socket.create_connection((host, {port}), 2); print('ESCAPED')
    except OSError as error: print(error)
""", "a server of the host"),
    shell("internet", "timeout 3 bash -c 'echo > /dev/tcp/192.0.2.1/53'", "another machine"),
    python("abstract-socket", """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect('\\0{name}'); print('ESCAPED')
""", "a unix socket of the host's that has no file"),
    python("vsock", "import socket; socket.socket(40, 1); print('ESCAPED')", "the hypervisor"),
    python("crypto-sockets", "import socket; socket.socket(38, 5); print('ESCAPED')", "the kernel's crypto"),
    python("raw-frames", "import socket; socket.socket(17, 3); print('ESCAPED')", "frames on the wire"),
    shell("network-device", "ip link add dummy0 type dummy", "a network of its own making"),
)  # fmt: skip


class EscapeSuite:
    """One test an attempt, all in one box."""

    @pytest.fixture(scope="class")
    def host(self) -> Iterator[dict[str, object]]:
        """What attempts look for: a server, a socket without a file, shared memory, a process."""
        name = f"longshell-escape-{threading.get_native_id()}"
        server = socket.create_server(("127.0.0.1", 0))
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0{name}")
        abstract.listen()
        shared = Path("/dev/shm", name)
        shared.write_text("secret")
        port = server.getsockname()[1]
        yield {"repository": REPOSITORY, "port": port, "name": name, "pid": threading.get_native_id()}
        shared.unlink()
        abstract.close()
        server.close()

    @pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
    async def test_attempt_does_not_succeed(self, box: Sandbox, host: dict[str, object], attempt: Attempt) -> None:
        program = attempt.program
        for key, value in host.items():
            program = program.replace(f"{{{key}}}", str(value))
        argv = ["python3", "-c", program] if attempt.python else ["bash", "-c", program]
        result = await box.exec(argv, timeout_s=60)
        assert b"ESCAPED" not in result.output, f"{attempt.success}: {result.output!r}"
        assert not result.timed_out

    async def test_an_attempt_that_succeeds_would_be_seen(self, box: Sandbox) -> None:
        for attempt in (shell("x", "true", ""), call("x", "call(39) > 0", "")):
            argv = ["python3", "-c", attempt.program] if attempt.python else ["bash", "-c", attempt.program]
            assert b"ESCAPED" in (await box.exec(argv, timeout_s=60)).output

    async def test_the_first_process_survives_every_signal(self, box: Sandbox) -> None:
        await sh(box, "for s in KILL TERM STOP SEGV HUP INT QUIT ABRT USR1; do kill -$s 1; done; true")
        assert await sh(box, "echo usable") == (0, "usable\n")


@dataclass(frozen=True)
class Misuse:
    """Something typed at a terminal that is no work, and the keys that leave it."""

    name: str
    typed: str
    rescue: str


MISUSES = (
    Misuse("endless output", "yes\n", "\x03"),
    Misuse("an editor", "vim x\n", "\x1b:q!\n"),
    Misuse("a pager", "less /etc/passwd\n", "q"),
    Misuse("a program that waits for input", "cat\n", "\x04"),
    Misuse("an interpreter", "python3 -q\n", "\x04"),
    Misuse("a shell in a shell", "sh\n", "exit\n"),
    Misuse("an open quote", "echo 'open\n", "\x03"),
    Misuse("ten megabytes", "head -c 10000000 /dev/zero | tr '\\0' x\n", "\x03"),
    Misuse("a program that ignores interrupts", "python3 -c 'import signal; signal.signal(2, 1); signal.pause()'\n",
           "\x1c"),
)  # fmt: skip


class MisuseSuite:
    """The box stays usable, or its end has the right reason."""

    async def test_a_fork_bomb_is_held_and_ends_with_its_processes(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        result = await box.exec(["bash", "-c", ":(){ :|:& };: 2>/dev/null; sleep 9"], timeout_s=1.0)
        assert result.timed_out or result.exit_code != 0
        assert sum(1 for _ in Path("/proc").glob("[0-9]*")) < 2000
        await box.end_processes()
        assert await sh(box, "echo usable") == (0, "usable\n")
        await box.stop()

    async def test_a_full_disk_is_told_and_can_be_emptied(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        code, said = await sh(
            box, "head -c 50000000 /dev/zero > fill; code=$?; rm fill; echo after > ok; cat ok; exit $code"
        )
        assert code != 0
        assert "No space left" in said or "File too large" in said or code == 128 + signal.SIGXFSZ
        assert said.endswith("after\n")
        await box.stop()

    async def test_a_memory_hog_is_killed_or_refused_and_the_box_lives(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        hog = "b = []\nwhile True: b.append(bytearray(1 << 24))"
        result = await box.exec(["python3", "-c", hog], timeout_s=60)
        assert (result.exit_code == 137 and result.oom) or b"MemoryError" in result.output
        after = await box.exec(["echo", "usable"], timeout_s=60)
        assert (after.output, after.oom) == (b"usable\n", False)
        await box.stop()

    async def test_a_swarm_that_lowers_its_scores_ends_no_box_but_as_spent(self, backend: SandboxBackend) -> None:
        """The kernel then took the box's first process for the fattest, and that was told as a fault."""
        box = await backend.start(SPEC)
        try:
            await box.exec(["python3", "-S", "-E", "-c", SWARM], timeout_s=20)
            await box.end_processes()
            assert await sh(box, "rm /dev/shm/x /tmp/x; echo usable") == (0, "usable\n")
        except BoxSpent:
            with pytest.raises(BoxSpent, match="memory"):
                await box.fork_view()
        await box.stop()

    async def test_ten_megabytes_come_whole_or_cut_as_asked(self, backend: SandboxBackend) -> None:
        box = await backend.start(SPEC)
        argv = ["bash", "-c", "head -c 10000000 /dev/zero | tr '\\0' x"]
        whole = await box.exec(argv, timeout_s=60, max_output_bytes=16 << 20)
        assert (len(whole.output), whole.truncated, set(whole.output)) == (10_000_000, False, {ord("x")})
        cut = await box.exec(argv, timeout_s=60, max_output_bytes=1000)
        assert cut.truncated
        assert len(cut.output) < 1100
        await box.stop()

    async def test_what_never_ends_is_ended_by_its_timeout_and_what_has_no_input_by_itself(
        self, backend: SandboxBackend
    ) -> None:
        box = await backend.start(SPEC)
        endless = await until_said(box, ["yes"], timeout_s=0.3, max_output_bytes=1000)
        assert (endless.timed_out, endless.exit_code, endless.truncated) == (True, None, True)
        assert (await box.exec(["cat"], timeout_s=60)).exit_code == 0
        assert (await box.exec(["less", "/etc/passwd"], timeout_s=60)).exit_code == 0
        await box.stop()

    @pytest.mark.nightly  # tests/sandbox/test_terminal.py has the same for one backend, one by one
    async def test_every_misuse_of_a_terminal_can_be_left(self, backend: SandboxBackend) -> None:
        box = await backend.start(replace(SPEC, memory_mb=256))
        terminals = [await box.terminal(rows=24, columns=80, echo=True) for _ in MISUSES]

        async def misuse(number: int) -> tuple[str, str]:
            terminal = terminals[number]
            await terminal.send(MISUSES[number].typed)
            await terminal.settle(1.0, at_prompt=False)
            output = await terminal.new_output()
            assert len(output) < 1 << 20
            for _ in range(10):  # on a busy machine keys may come before the program that they leave
                await terminal.send(MISUSES[number].rescue)
                await terminal.settle(3, at_prompt=True)
                await terminal.send("\x15echo us''able\n")
                await terminal.settle(3, at_prompt=True)
                output = await terminal.new_output()
                if "usable" in output:
                    break
            return MISUSES[number].name, output

        left = await asyncio.gather(*(misuse(number) for number in range(len(MISUSES))))
        assert [name for name, output in left if "usable" not in output] == []
        await box.stop()
