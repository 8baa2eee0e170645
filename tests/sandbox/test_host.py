"""Boxes that outlive the process that uses them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from components.config import SandboxConfig
from components.errors import ConfigError, InfraFault
from components.sandbox import SandboxBackend
from components.sandbox.host import HostBackend, claim, open_host, open_place, required
from components.sandbox.host import launch as launching
from components.sandbox.host.client import HostBox, HostTerminal
from tests.conformance.sandbox_suite import SandboxSuite
from tests.sandbox.conftest import NOBODY, SMALL

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWNER = """
import asyncio, json, sys
from pathlib import Path
from components.config import SandboxConfig
from components.sandbox import SandboxSpec
from components.sandbox.host import open_host

async def main():
    host = await open_host(SandboxConfig(), Path(sys.argv[1]), float(sys.argv[2]))
    box = await host.start(SandboxSpec(memory_mb=128, disk_mb=16, pids=64))
    terminal = await box.terminal(rows=10, columns=80, echo=True)
    await terminal.send("cd /tmp; colour=green; echo begun\\n")
    await terminal.settle(10, at_prompt=True)
    await terminal.new_output()
    asyncio.create_task(terminal.send("sleep 0.3; echo $colour > seen; echo late\\n"))
    await asyncio.sleep(0.1)
    print(json.dumps([box.id, terminal._target]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def owner(folder: Path, linger_s: float) -> tuple[subprocess.Popen[bytes], str, int]:
    """A process that owns a host, in whose only box it has called a terminal four times; the last was a command."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), str(linger_s)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    box, terminal = json.loads(process.stdout.readline())
    return process, box, terminal


def hosts(folder: Path) -> list[psutil.Process]:
    """The processes of a folder's host that are no zombies."""
    every = psutil.process_iter(["cmdline"])
    found = [process for process in every if str(folder / "host") in (process.info["cmdline"] or [])]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


async def end_of(folder: Path) -> None:
    """Waits for the end of a folder's host: its owner hears of it a moment earlier."""
    deadline = time.monotonic() + 20
    while hosts(folder):
        assert time.monotonic() < deadline, "the host lives"
        await asyncio.sleep(0.02)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def test_the_next_owner_goes_on_in_the_box_and_a_command_under_way_is_executed_once(state_dir: Path) -> None:
    process, name, target = await asyncio.to_thread(owner, state_dir / "taken-over", 60)
    kill(process)
    host = await open_host(SandboxConfig(), state_dir / "taken-over", 60)
    try:
        held = host.held[name]
        assert (list(host.held), held.terminals, held.pristine) == ([name], {target: 4}, True)
        terminal = HostTerminal(host._link, target, True, None)
        terminal._number = 3
        await terminal.send("sleep 0.3; echo $colour > seen; echo late\n")
        assert await terminal.settle(10, at_prompt=True)
        output = await terminal.new_output()
        assert output.count("late\n") == 1 + output.count("echo late")
        box = HostBox(host._link, held.target, held.id, held.isolation)
        assert await box.get("/tmp/seen") == b"green\n"
        terminal._number = 4
        with pytest.raises(InfraFault, match="call 5 \\(screen\\) of a terminal that has had 6, the last"):
            await terminal.screen()
    finally:
        await host.close()
    await end_of(state_dir / "taken-over")


@pytest.mark.parametrize("spoilt", ["another's", "open", "led elsewhere"])
async def test_a_folder_that_is_not_its_users_alone_is_refused(tmp_path: Path, spoilt: str) -> None:
    folder = tmp_path / "host"
    if spoilt == "led elsewhere":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    else:
        folder.mkdir(mode=0o700)
    if spoilt == "open":
        folder.chmod(0o770)
    if spoilt == "another's":
        if os.geteuid() != 0:
            pytest.skip("only root gives a folder away")
        os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"remove {folder}"):
        await open_place(tmp_path)
    assert not list(folder.iterdir())


async def test_a_host_that_lives_and_does_not_answer_is_not_replaced(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts once had one state where a lost owner's connection stayed open."""
    folder = state_dir / "busy"
    place = await open_place(folder, "127.0.0.1")
    address = await place.start(SandboxConfig(), folder, 60)
    first = required(await claim(address, SandboxConfig(), place.release), address)
    monkeypatch.setattr(launching, "CLAIM_S", 0.2)
    monkeypatch.setattr(launching, "OWNER_S", 0.2)
    assert await claim(address, SandboxConfig(), place.release) is None
    with pytest.raises(InfraFault, match="lives and does not answer"):
        await place.start(SandboxConfig(), folder, 60)
    assert (len(hosts(folder)), place.address) == (1, address)
    await first.close()
    await end_of(folder)


@pytest.mark.nightly
async def test_a_host_has_one_owner_and_ends_when_the_next_does_not_come(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state_dir / "alone"
    process, _, _ = await asyncio.to_thread(owner, folder, 0.5)
    monkeypatch.setattr(launching, "OWNER_S", 0.2)
    with pytest.raises(InfraFault, match="is owned by a process that lives"):
        await open_host(SandboxConfig(), folder, 0.5)
    (ours,) = hosts(folder)
    below = ours.children(recursive=True)
    assert below
    kill(process)
    await end_of(folder)
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in below)
    assert list((folder / "leases").iterdir()) == []


@pytest.mark.nightly
async def test_an_owner_with_another_configuration_begins_anew(state_dir: Path) -> None:
    folder = state_dir / "other"
    process, _, _ = await asyncio.to_thread(owner, folder, 60)
    kill(process)
    host = await open_host(SandboxConfig(pids=99), folder, 60)
    assert host.held == {}
    assert len(hosts(folder)) == 1
    await host.close()


@pytest.mark.nightly
async def test_a_killed_host_is_a_fault_of_whoever_waits_and_the_next_owner_has_a_new_one(state_dir: Path) -> None:
    folder = state_dir / "killed"
    host = await open_host(SandboxConfig(), folder, 60)
    box = await host.start(SMALL)
    waiting = asyncio.create_task(box.exec(["sleep", "60"], timeout_s=60))
    await asyncio.sleep(0.2)
    (process,) = hosts(folder)
    process.kill()
    with pytest.raises(InfraFault, match="the sandbox host is gone"):
        await waiting
    with pytest.raises(InfraFault, match="the sandbox host is gone"):
        await host.start(SMALL)
    await host.close()
    again = await open_host(SandboxConfig(), folder, 60)
    assert again.held == {}
    assert (await (await again.start(SMALL)).exec(["echo", "hi"], timeout_s=10)).output == b"hi\n"
    await again.close()


@pytest.mark.nightly
async def test_where_no_box_can_be_had_the_owner_is_told_why(state_dir: Path) -> None:
    config = SandboxConfig.model_validate({"backend": "docker", "docker": {"host": "unix:///nowhere.sock"}})
    with pytest.raises(ConfigError, match=r"unix:///nowhere\.sock"):
        await open_host(config, state_dir / "refused", 60)
    await end_of(state_dir / "refused")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosted(state_dir: Path) -> AsyncIterator[HostBackend]:
    backend = await open_host(SandboxConfig(), state_dir / "suite", 0)
    yield backend
    await backend.close()


@pytest.mark.nightly
class TestHosted(SandboxSuite):
    @pytest.fixture
    def backend(self, hosted: HostBackend) -> SandboxBackend:
        return hosted
