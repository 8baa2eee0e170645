"""What is left when something is killed: nothing, or what the next start sweeps."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.config.rollout import SandboxConfig
from components.errors import ConfigError, FaultCause, InfraFault
from components.sandbox import ImageSpec, SandboxSpec, ZygoteBackend, backend, exchange, leases, open_backend
from components.sandbox.store import ImageStore
from components.sandbox.zygote import cgroups
from tests.conformance.sandbox_suite import sh
from tests.sandbox.conftest import NOBODY, SMALL, needs_root
from tests.sandbox.small_root import NAME, small_base
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
REPOSITORY = Path(__file__).parents[2]
MANAGER = """
import asyncio, sys
from pathlib import Path
from components.sandbox import SandboxSpec, ZygoteBackend
async def main():
    backend = await ZygoteBackend.open(sys.argv[1], Path(sys.argv[2]))
    boxes = [await backend.start(SandboxSpec(memory_mb=128, disk_mb=8)) for _ in range(3)]
    for box in boxes:
        await box.terminal(rows=24, columns=80, echo=True)
        await box.exec(["bash", "-c", f"(setsid sleep {sys.argv[3]} &) ; echo x"], timeout_s=10)
    print(backend.lease, backend._process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
BUSY = """
import asyncio, itertools, sys
from pathlib import Path
from components.config import SandboxConfig
from components.sandbox import ImageSpec, RunStep, SandboxSpec, open_backend
state, images, mark, name = sys.argv[1:]
async def work(backend, worker):
    for turn in itertools.count():
        image = ImageSpec(name, steps=(RunStep(f"seq 9999 > /app/{worker}.{turn}", "/app", {}, 2),))
        box = await backend.start(SandboxSpec(image=image, memory_mb=64, disk_mb=8))
        await box.exec(["bash", "-c", f"sleep {mark} & echo x"], timeout_s=10)
        saved = await box.snapshot()
        await (await box.fork_view()).stop()
        await backend.forget(saved)
        await box.stop()
async def main():
    backend = await open_backend(SandboxConfig(images=images, min_free_mb=0), Path(state))
    await asyncio.gather(*(work(backend, worker) for worker in range(3)))
asyncio.run(main())
"""


def running(argument: str) -> list[int]:
    """Processes of the whole machine with this argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def groups_of(lease: str) -> list[str]:
    hierarchies = cgroups.find()
    return [] if hierarchies is None else [path for path in hierarchies.groups(lease) if os.path.exists(path)]


def start_manager(isolation: str, state_dir: Path, mark: str) -> tuple[subprocess.Popen[str], str, int]:
    """A manager in a process of its own, with boxes and background programs; its lease and its zygote's pid."""
    manager = subprocess.Popen(
        [sys.executable, "-c", MANAGER, isolation, str(state_dir), mark],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert manager.stdout is not None
    lease, zygote = manager.stdout.readline().split()
    return manager, lease, int(zygote)


@pytest.mark.parametrize("isolation", [pytest.param("namespace/root", marks=needs_root), "process"])
async def test_a_killed_manager_leaves_nothing(isolation: str, tmp_path: Path) -> None:
    mark = f"86{os.getpid()}.{len(isolation)}"
    manager, lease, zygote = start_manager(isolation, tmp_path, mark)
    eventually(lambda: len(running(mark)) == 3 + 1)  # the manager has it among its arguments too
    manager.kill()
    manager.wait()
    eventually(lambda: not running(mark))
    eventually(lambda: not Path(f"/proc/{zygote}").exists())
    eventually(lambda: not groups_of(lease))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert leases.sweep(tmp_path / "leases", tmp_path / "boxes") == [lease]
    assert not list((tmp_path / "leases").iterdir()) + list((tmp_path / "boxes").iterdir())


@needs_root
async def test_a_manager_killed_with_its_zygote_is_swept_by_the_next(tmp_path: Path) -> None:
    mark = f"87{os.getpid()}.5"
    manager, lease, zygote = start_manager("namespace/root", tmp_path, mark)
    os.kill(manager.pid, signal.SIGSTOP)
    os.kill(zygote, signal.SIGKILL)
    manager.kill()
    manager.wait()
    eventually(lambda: not running(mark))
    assert groups_of(lease)
    opened = await open_backend(SandboxConfig(), tmp_path)
    assert not groups_of(lease)
    await opened.close()
    assert not list((tmp_path / "leases").iterdir()) + list((tmp_path / "boxes").iterdir())


async def test_what_others_left_waits_no_longer_than_a_minute() -> None:
    assert leases.HEARTBEAT_S * leases.SWEEP_EVERY <= 60


async def test_a_sweep_spares_what_lives_and_what_it_cannot_judge(tmp_path: Path) -> None:
    me = leases.current_owner()
    strangers = {
        "living": me,
        "elsewhere": leases.Owner(1, 1, me.boot, me.pid_namespace + 1),
        "reused": leases.Owner(me.pid, me.started - 1, me.boot, me.pid_namespace),
        "rebooted": leases.Owner(me.pid, me.started, "another boot", me.pid_namespace),
    }
    for name, owner in strangers.items():
        leases.record(tmp_path / "leases", name, owner)
        (tmp_path / "boxes" / name).mkdir(parents=True)
    (tmp_path / "leases" / "killed-early.tmp").touch()
    assert leases.sweep(tmp_path / "leases", tmp_path / "boxes") == ["rebooted", "reused"]
    assert sorted(path.name for path in (tmp_path / "boxes").iterdir()) == ["elsewhere", "living"]
    long_ago = time.time() - leases.STALE_S - 1
    for path in (tmp_path / "leases").iterdir():
        os.utime(path, (long_ago, long_ago))
    assert leases.sweep(tmp_path / "leases", tmp_path / "boxes") == ["elsewhere"]
    assert [path.name for path in (tmp_path / "leases").iterdir()] == ["living.json"]


@needs_root
async def test_images_of_another_user_are_refused_with_one_sentence(state_dir: Path) -> None:
    ImageStore(state_dir / "roots")
    state = state_dir / "nobodys"
    state.mkdir()
    state.chmod(0o777)
    await asyncio.to_thread(int)  # whose import may not be for everybody
    os.seteuid(NOBODY)
    try:
        with pytest.raises(ConfigError, match="another user's"):
            await open_backend(SandboxConfig(images=str(state_dir / "roots")), state)
    finally:
        os.seteuid(0)


@needs_root
async def test_sweeps_at_once_do_not_trip_over_what_another_has_removed(tmp_path: Path) -> None:
    """Found with four backends that opened together: ENODEV out of `open_backend`."""
    hierarchies, me = cgroups.find(), leases.current_owner()
    if hierarchies is None:
        pytest.skip("no writable control groups")
    ended = [f"{me.pid}-{me.started - 1}-{me.pid_namespace}-{number:08x}" for number in range(24)]
    for lease in ended:
        cgroups.open_lease(hierarchies, lease)
        for path in (path for box in ("box1", "box2", "box3") for path in hierarchies.groups(lease, box)):
            os.mkdir(path)
    context = multiprocessing.get_context("fork")
    together = context.Barrier(4)

    def sweep() -> None:
        together.wait()
        leases.sweep(tmp_path / "leases", tmp_path / "boxes")

    sweeping = [context.Process(target=sweep) for _ in range(4)]
    for process in sweeping:
        process.start()
    for process in sweeping:
        process.join()
    assert [process.exitcode for process in sweeping] == [0, 0, 0, 0]
    assert not any(os.path.exists(path) for lease in ended for path in hierarchies.groups(lease))


async def test_a_living_backend_beats_and_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(leases, "SWEEP_EVERY", 2)
    me = leases.current_owner()
    lease = leases.record(tmp_path / "leases", "mine", me)
    leases.record(tmp_path / "leases", "ended", leases.Owner(me.pid, me.started - 1, me.boot, me.pid_namespace))
    os.utime(lease, (0, 0))
    heartbeat = leases.Heartbeat(lease, tmp_path / "boxes")
    heartbeat.start()
    await asyncio.to_thread(eventually, lambda: not (tmp_path / "leases" / "ended.json").exists())
    assert lease.stat().st_mtime > 0
    heartbeat.stop()


async def test_a_member_of_a_group_that_cannot_be_seen_is_not_killed_as_our_own_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n")  # kill(0) would end this very test
    leases._kill_members(tmp_path)


@needs_root
async def test_the_lease_is_on_disk_before_the_first_box(tmp_path: Path) -> None:
    opened = await ZygoteBackend.open("namespace/root", tmp_path)
    (lease,) = (tmp_path / "leases").iterdir()
    assert json.loads(lease.read_text())["pid"] == os.getpid()
    await opened.close()
    await opened.close()
    assert not list((tmp_path / "leases").iterdir())


@needs_root
async def test_the_zygote_s_death_is_a_fault_for_everyone_and_ends_every_box(tmp_path: Path) -> None:
    opened = await ZygoteBackend.open("namespace/root", tmp_path)
    box = await opened.start(SMALL)
    terminal = await box.terminal(rows=24, columns=80, echo=True)
    mark = f"88{os.getpid()}.5"
    pending = asyncio.create_task(box.exec(["sleep", mark], timeout_s=60))
    await asyncio.sleep(0.1)
    assert opened._process is not None
    opened._process.kill()
    with pytest.raises(InfraFault) as caught:
        await pending
    assert caught.value.cause is FaultCause.SANDBOX
    eventually(lambda: not running(mark))
    with pytest.raises(InfraFault):
        await opened.start(SMALL)
    with pytest.raises(InfraFault):
        await terminal.send("ls\n")
    await box.stop()
    await opened.close()
    assert not groups_of(opened.lease)
    assert not list((tmp_path / "leases").iterdir())


@pytest.mark.nightly
@needs_root
@pytest.mark.parametrize("seed", range(12))
async def test_whenever_a_manager_is_killed_the_next_pass_leaves_nothing(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    images, mark = tmp_path / "images", f"85{os.getpid()}{seed}.5"
    images.mkdir()
    small_base(ImageStore(images), tmp_path)
    manager = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(tmp_path), str(images), mark, NAME],
        cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert manager.stdout is not None
    while not any((tmp_path / "leases").glob("*")) and manager.poll() is None:
        await asyncio.sleep(0.001)
    await asyncio.sleep(chance.uniform(0, 2.5) ** 2 / 2.5)
    zygotes = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == manager.pid]
    if zygotes and chance.random() < 0.5:
        os.kill(manager.pid, signal.SIGSTOP)
        os.kill(chance.choice(zygotes), signal.SIGKILL)
    manager.kill()
    manager.wait()
    eventually(lambda: not running(mark))
    for path in (tmp_path / "leases").glob("*.tmp"):
        os.utime(path, (0, 0))
    opened = await open_backend(SandboxConfig(images=str(images), min_free_mb=0), tmp_path)
    box = await opened.start(SandboxSpec(image=ImageSpec(NAME), memory_mb=64, disk_mb=8))
    await box.stop()
    await opened.close()
    left = [*(tmp_path / "leases").iterdir(), *(tmp_path / "boxes").iterdir(), *(images / "layers").glob(".*")]
    assert left == []
    hierarchies = cgroups.find()
    assert hierarchies is not None
    families = [Path(group).parent for group in hierarchies.groups("any")]
    eventually(lambda: not [left for family in families for left in family.glob(f"{manager.pid}-*")])
    assert not running(mark)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@needs_root
async def test_groups_whose_lease_was_lost_with_its_folder_are_swept_by_anybody(tmp_path: Path) -> None:
    me = leases.current_owner()
    hierarchies = cgroups.find()
    if hierarchies is None:
        pytest.skip("no control groups here")
    lost = leases.new_lease(leases.Owner(me.pid, me.started - 1, me.boot, me.pid_namespace))
    kept = [
        leases.new_lease(me),
        leases.new_lease(leases.Owner(me.pid, me.started - 1, me.boot, me.pid_namespace + 1)),
    ]
    for lease in (lost, *kept):
        cgroups.open_lease(hierarchies, lease)
    try:
        assert lost in leases.sweep(tmp_path / "leases", tmp_path / "boxes")
        assert not groups_of(lost)
        assert all(groups_of(lease) for lease in kept)
    finally:
        for lease in kept:
            cgroups.remove(hierarchies.groups(lease))


async def test_a_box_that_dies_is_a_fault_and_leaves_the_others(root_backend: ZygoteBackend) -> None:
    first, second = await asyncio.gather(root_backend.start(SMALL), root_backend.start(SMALL))
    mark = f"89{os.getpid()}.5"
    pending = asyncio.create_task(first.exec(["sleep", mark], timeout_s=60))
    await asyncio.to_thread(eventually, lambda: len(running(mark)) == 1)
    parent = int(Path(f"/proc/{running(mark)[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(InfraFault):
        await pending
    with pytest.raises(InfraFault):
        await first.fork_view()
    assert await sh(second, "echo fine") == (0, "fine\n")
    await first.stop()
    await second.stop()


async def test_sixty_four_boxes_live_at_once(root_backend: ZygoteBackend) -> None:
    boxes = await asyncio.gather(*(root_backend.start(SMALL) for _ in range(64)))
    outputs = await asyncio.gather(*(sh(box, f"echo {n} > f; cat f") for n, box in enumerate(boxes)))
    assert outputs == [(0, f"{n}\n") for n in range(64)]
    await asyncio.gather(*(box.stop() for box in boxes))
    assert not [path for group in groups_of(root_backend.lease) for path in Path(group).iterdir() if path.is_dir()]


async def test_auto_takes_the_strongest_and_falls_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    async def refuse(isolation: str, state_dir: Path, *_: object) -> ZygoteBackend:
        tried.append(isolation)
        if isolation != "process":
            raise InfraFault(FaultCause.SANDBOX, f"{isolation}: no overlay")
        return await ZygoteBackend.open(isolation, state_dir)

    monkeypatch.setattr(backend, "_open_and_try", refuse)
    with pytest.raises(ConfigError, match=r"no overlay.*Run as root"):
        await open_backend(SandboxConfig(backend="namespace"), tmp_path)
    assert tried == ["namespace/root", "namespace/unprivileged"]
    opened = await open_backend(SandboxConfig(allow_unisolated=True), tmp_path)
    assert opened.isolation == "process"
    assert "NO ISOLATION" in caplog.text
    await opened.close()


async def test_no_isolation_must_be_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allow_unisolated"):
        await open_backend(SandboxConfig(backend="process"), tmp_path)


@needs_root
async def test_a_kernel_without_idmapped_mounts_gets_a_system_nobody_owns(tmp_path: Path) -> None:
    opened = await ZygoteBackend.open("namespace/root", tmp_path, idmap=False)
    box = await opened.start(SandboxSpec(memory_mb=128, disk_mb=8))
    assert await sh(box, "id -u; stat -c %U /usr/bin/env /etc/passwd /app; echo x > /etc/x && cat /etc/x") == (
        0,
        "0\nnobody\nroot\nroot\nx\n",
    )
    await box.stop()
    await opened.close()


@needs_root
async def test_a_box_whose_end_came_late_is_ended_once_more_without_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await ZygoteBackend.open("namespace/root", tmp_path)
    assert opened._process is not None
    box = await opened.start(SMALL)
    os.kill(opened._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(backend, "END_S", 0.05)
    try:
        with pytest.raises(InfraFault, match=r"did not end in 0\.05 s"):
            await box.stop()
    finally:
        os.kill(opened._process.pid, signal.SIGCONT)
    monkeypatch.undo()
    await opened.end(box._life)  # once raised CancelledError: the deadline had cancelled what it waited for
    assert box._life.gone.done()
    await opened.close()


@needs_root
async def test_nobody_waits_for_the_end_of_a_box_whose_zygote_was_killed(tmp_path: Path) -> None:
    opened = await ZygoteBackend.open("namespace/root", tmp_path)
    assert opened._process is not None
    box = await opened.start(SMALL)
    os.kill(opened._process.pid, signal.SIGSTOP)
    stopping = asyncio.create_task(box.stop())
    await asyncio.sleep(0.05)
    os.kill(opened._process.pid, signal.SIGKILL)
    async with asyncio.timeout(backend.END_S / 4):
        await stopping
    await opened.close()


async def test_patience_is_not_spent_while_the_process_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SLICE_S", 0.05)
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    waiting = asyncio.create_task(exchange.outlast(answer, 0.5))
    await asyncio.sleep(0)
    time.sleep(0.7)  # a machine that was paused; once, every box that was ending then "did not end"
    loop.call_later(0.1, answer.set_result, None)
    assert await waiting
    assert not await exchange.outlast(loop.create_future(), 0.1)


@needs_root
async def test_memory_that_is_short_around_a_box_is_a_fault_and_not_what_its_programs_took(tmp_path: Path) -> None:
    """In a container with a limit the kernel killed a verifier first, and its box was told to have done it."""
    hierarchies = cgroups.find()
    if hierarchies is None:
        pytest.skip("no control groups here")
    opened = await open_backend(SandboxConfig(min_free_mb=0), tmp_path)
    try:
        assert isinstance(opened, ZygoteBackend)
        box = await opened.start(SandboxSpec(memory_mb=400, disk_mb=16))
        groups = dict(zip(hierarchies.roots, hierarchies.groups(opened.lease), strict=True))
        around = {1: "memory.limit_in_bytes", 2: "memory.max"}[hierarchies.version]
        Path(groups["memory" if hierarchies.version == 1 else "unified"], around).write_text(str(90 << 20))
        with pytest.raises(InfraFault, match="lacks"):
            await box.exec(["python3", "-c", "x = b'1' * (150 << 20)"], timeout_s=30)
        await box.stop()
    finally:
        await opened.close()
