"""What a program in a box cannot do, tried from inside with root's rights there."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from components.sandbox import Sandbox, SandboxSpec, ZygoteBackend
from components.sandbox import backend as backend_module
from tests.conformance.escape_suite import EscapeSuite, MisuseSuite
from tests.conformance.sandbox_suite import sh
from tests.sandbox.conftest import SMALL

pytestmark = pytest.mark.asyncio(loop_scope="module")
REPOSITORY = Path(__file__).parents[2]


class TestEscapesAsRoot(EscapeSuite):
    @pytest_asyncio.fixture(scope="class", loop_scope="module")
    async def box(self, root_backend: ZygoteBackend) -> AsyncIterator[Sandbox]:
        started = await root_backend.start(SMALL)
        yield started
        await started.stop()


class TestEscapesUnprivileged(EscapeSuite):
    @pytest_asyncio.fixture(scope="class", loop_scope="module")
    async def box(self, unprivileged_backend: ZygoteBackend) -> AsyncIterator[Sandbox]:
        started = await unprivileged_backend.start(SMALL)
        yield started
        await started.stop()


class TestMisuseAsRoot(MisuseSuite):
    @pytest.fixture
    def backend(self, root_backend: ZygoteBackend) -> ZygoteBackend:
        return root_backend


@pytest.mark.nightly
class TestMisuseUnprivileged(MisuseSuite):
    @pytest.fixture
    def backend(self, unprivileged_backend: ZygoteBackend) -> ZygoteBackend:
        return unprivileged_backend


async def test_devices_of_all_boxes_cannot_be_planted_or_changed(any_box: Sandbox) -> None:
    assert (await sh(any_box, "touch /dev/planted"))[0] != 0


async def test_paths_of_the_host_are_not_there(any_box: Sandbox) -> None:
    paths = [REPOSITORY, Path("/work"), Path.home() / ".ssh", Path("/boot/vmlinuz"), Path("/etc/shadow")]
    for path in paths:
        assert (await sh(any_box, f"test -e {path} && echo seen"))[1] == "", path
    assert (await sh(any_box, "ls -A /root /home /opt /srv /mnt | grep -v : | tr -d '\\n'"))[1] == ""
    everything = (await sh(any_box, "cat /proc/self/mountinfo; cat /proc/1/cmdline /proc/1/environ; ps -ef; env"))[1]
    for secret in (str(REPOSITORY), "longshell-test", str(Path.home() / ".pyenv"), "zygote"):
        assert secret not in everything.replace("LONGSHELL_EXEC", ""), secret


async def test_only_the_box_s_processes_are_visible(any_box: Sandbox) -> None:
    assert int((await sh(any_box, "ls /proc | grep -c '^[0-9]'"))[1]) <= 6


async def test_there_is_no_network_but_its_own_loopback(any_box: Sandbox) -> None:
    assert (await sh(any_box, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"))[1] == "lo\n"
    code, output = await sh(any_box, "timeout 3 bash -c 'echo > /dev/tcp/192.0.2.1/53'")
    assert code != 0
    assert "unreachable" in output
    serve = "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & "
    knock = "for i in $(seq 100); do (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null && echo up && break; sleep .05; done"
    assert (await sh(any_box, serve + knock))[1] == "up\n"


async def test_loopback_of_one_box_is_not_another_s(root_backend: ZygoteBackend, box: Sandbox) -> None:
    other = await root_backend.start(SMALL)
    listen = "import socket,time\ns=socket.socket(); s.bind(('127.0.0.1', 9000)); s.listen(); print('up', flush=True)"
    assert (await sh(box, f'python3 -c "{listen}"'))[1] == "up\n"
    assert (await sh(other, f'python3 -c "{listen}"'))[1] == "up\n"
    await other.stop()


TAKE = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
taken = 0
while taken < 4096 and libc.inotify_init1(0) >= 0: taken += 1
print(taken, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("privileged", [True, False])
async def test_what_one_box_takes_of_the_kernels_counts_is_left_to_others(
    root_backend: ZygoteBackend, unprivileged_backend: ZygoteBackend, privileged: bool
) -> None:
    """Every box's user namespace was root's, who had no inotify left, nor had any other box."""
    backend = root_backend if privileged else unprivileged_backend
    greedy, other = [await backend.start(SMALL) for _ in range(2)]
    await greedy.put({"/app/take.py": TAKE.encode()})
    hold = "(sleep 60 | python3 take.py > taken) & until [ -s taken ]; do sleep 0.05; done; cat taken"
    assert int((await sh(greedy, hold))[1]) >= 16
    result = await other.exec(["python3", "-c", TAKE], timeout_s=20)
    assert int(result.output) >= 16
    if privileged:
        instance = ctypes.CDLL(None, use_errno=True).inotify_init1(0)
        assert instance >= 0, os.strerror(ctypes.get_errno())
        os.close(instance)
    await asyncio.gather(greedy.stop(), other.stop())


async def test_a_process_may_trace_its_own_child(box: Sandbox) -> None:
    trace = "import ctypes,os,time; p=os.fork() or time.sleep(9); print(ctypes.CDLL(None).ptrace(16, p, 0, 0))"
    assert (await sh(box, f"python3 -c '{trace}'"))[1] == "0\n"


async def test_set_user_id_programs_give_nothing(box: Sandbox) -> None:
    script = "cp /bin/cat /tmp/c; chmod 4755 /tmp/c; setpriv --reuid 65534 --clear-groups /tmp/c /proc/self/status"
    status = (await sh(box, script))[1]
    assert "Uid:\t65534\t65534" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


async def test_what_one_box_writes_is_neither_on_the_host_nor_in_another(
    root_backend: ZygoteBackend, box: Sandbox
) -> None:
    name = f"planted-{os.getpid()}"
    script = f"for d in / /usr/bin /etc /tmp /dev/shm /root /var; do echo x > $d/{name} || echo failed $d; done"
    assert (await sh(box, script)) == (0, "")
    await sh(box, "rm -rf /usr/share /etc/passwd; echo evil > /usr/bin/env")
    other = await root_backend.start(SMALL)
    check = (
        f"ls -d /{name} /usr/bin/{name} /etc/{name} /tmp/{name} /dev/shm/{name} /root/{name} /var/{name} 2>/dev/null"
    )
    assert (await sh(other, check))[1] == ""
    assert await sh(other, "ls -d /usr/share; head -c 4 /usr/bin/env | tail -c 3; env true") == (0, "/usr/share\nELF")
    await other.stop()
    assert not any(
        Path(folder, name).exists() for folder in ("/", "/usr/bin", "/etc", "/tmp", "/dev/shm", "/root", "/var")
    )


async def test_a_full_disk_is_the_box_s_own_and_leaves_its_memory(box: Sandbox) -> None:
    code, output = await sh(box, "head -c 50000000 /dev/zero > fill; stat -c %s fill; rm fill; echo after > ok; cat ok")
    assert "No space left" in output
    assert code == 0
    assert output.endswith("after\n")
    assert 14 << 20 < int(output.splitlines()[-2]) <= 16 << 20
    await sh(box, "head -c 50000000 /dev/zero > fill")
    with pytest.raises(OSError, match="No space"):
        await box.put({"/app/more": bytes(100_000)})
    view = await box.fork_view()
    await view.put({"/tests/t": b"room\n"})
    assert (await sh(view, "cat /tests/t; python3 -c 'print(len(bytes(60 << 20)))'"))[1] == f"room\n{60 << 20}\n"
    await view.stop()


async def test_inodes_run_out_before_the_host_s_memory(box: Sandbox) -> None:
    script = """
import os
try:
    for n in range(400000): open(f'/tmp/{n}', 'w').close()
except OSError as error: print(error.errno, n < 30000)
"""
    result = await box.exec(["python3", "-c", script], timeout_s=30)
    assert result.output == b"28 True\n"


async def test_processor_time_is_held_to_its_quota(root_backend: ZygoteBackend) -> None:
    box = await root_backend.start(SandboxSpec(cpus=0.5, memory_mb=128, disk_mb=16, pids=32))
    spin = "e=$((SECONDS+2)); while [ $SECONDS -lt $e ]; do :; done"
    script = f"time -p bash -c '{spin} & {spin}; wait'"
    output = (await sh(box, script))[1]
    used = {
        line.split()[0]: float(line.split()[1])
        for line in output.split("\n")
        if line.startswith(("real", "user", "sys"))
    }
    assert used["user"] + used["sys"] < 0.75 * used["real"]
    await box.stop()


async def test_forged_system_files_do_not_reach_a_view(box: Sandbox) -> None:
    forge = """
echo kept > /app/answer; mkdir /data; echo kept > /data/out
printf '#!/bin/sh\\necho forged\\n' > /usr/bin/python3.99; cp /usr/bin/python3.99 /bin/cat
rm -rf /etc; ln -sfn /app /etc 2>/dev/null; echo '/app/evil.so' > /etc/ld.so.preload
mkdir -p /root/.local/lib/python3.11/site-packages
echo 'print("forged")' > /root/.local/lib/python3.11/site-packages/usercustomize.py
rm /bin; mkdir -p /bin; cp /usr/bin/python3.99 /bin/sh; rm /lib64
"""
    await box.exec(["bash", "-c", forge], timeout_s=10)
    view = await box.fork_view()
    assert await sh(view, "cat answer /data/out; readlink /bin; sh -c 'echo real'; python3 -c 'print(1)'") == (
        0,
        "kept\nkept\nusr/bin\nreal\n1\n",
    )
    assert (await sh(view, "ls /usr/bin/python3.99 /etc/ld.so.preload; head -1 /etc/passwd"))[1].endswith("/bin/bash\n")
    await view.stop()


async def test_links_the_agent_planted_lead_nowhere_outside_from_a_view(box: Sandbox) -> None:
    await sh(box, f"rm -rf /app; ln -s {REPOSITORY} /app; rm -rf /tmp; ln -s / /tmp; ln -s /etc/shadow /root/report")
    view = await box.fork_view()
    assert (await sh(view, "true"))[0] in (0, 127)
    with pytest.raises(FileNotFoundError):
        await view.get("/app/pyproject.toml")
    with pytest.raises(FileNotFoundError):
        await view.get("/root/report")
    await view.put({"/tmp/written": b"inside"})
    assert not Path("/written").exists()
    await view.stop()


async def test_a_spec_with_system_files_shows_them_in_its_views(root_backend: ZygoteBackend) -> None:
    spec = SandboxSpec(memory_mb=128, disk_mb=16, files={"/usr/local/bin/tool": b"real\n", "/app/in": b"1\n"})
    box = await root_backend.start(spec)
    assert await sh(box, "cat /usr/local/bin/tool in; echo forged > /usr/local/bin/tool; rm in") == (0, "real\n1\n")
    view = await box.fork_view()
    assert await sh(view, "cat /usr/local/bin/tool; ls") == (0, "real\n")
    await view.stop()
    await box.stop()


async def test_views_of_living_boxes_outlast_the_cache_of_bases(
    root_backend: ZygoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "BASES", 1)
    specs = [SandboxSpec(memory_mb=128, disk_mb=8, setup=(f"echo {n} > /etc/n",)) for n in range(4)]
    boxes = [await root_backend.start(spec) for spec in specs]
    again = await root_backend.start(specs[0])
    for n, box in enumerate(boxes):
        view = await box.fork_view()
        assert await sh(view, "cat /etc/n") == (0, f"{n}\n")
        await view.stop()
    await asyncio.gather(*(box.stop() for box in [*boxes, again]))
    fresh = await root_backend.start(specs[0])
    assert await sh(fresh, "cat /etc/n") == (0, "0\n")
    await fresh.stop()


async def test_git_works_without_ceremony(any_box: Sandbox) -> None:
    script = (
        "git init -q . && git config user.email a@b && git config user.name n && echo x > f && git add f && "
        "git commit -qm one && git log --format=%s && git status --short && "
        "chown 1000 .git 2> /dev/null; "
        "git rev-parse --is-inside-work-tree"
    )
    assert await sh(any_box, script) == (0, "one\ntrue\n")
