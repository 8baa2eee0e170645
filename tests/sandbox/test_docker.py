"""Boxes on a real Docker engine, started for these tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio

from components.config import SandboxConfig
from components.errors import Failure, FaultCause, InfraFault, failure_of
from components.sandbox import ImageSpec, Sandbox, SandboxBackend, SandboxSpec, open_backend
from components.sandbox.docker import images, reaper
from tests import dockerd
from tests.conformance.escape_suite import ATTEMPTS, Attempt, EscapeSuite, MisuseSuite
from tests.conformance.sandbox_suite import SandboxSuite, read_image, sh

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = SandboxSpec(memory_mb=64, disk_mb=16, pids=32)
OWN = ("chmod-null", "debugfs", "cgroup")
"""Attempts whose success, in a container, is not what it would be in a namespace; see the test of these."""
MANAGER = """
import asyncio, sys
from pathlib import Path
from components.config import SandboxConfig
from components.sandbox import SandboxSpec, open_backend
async def main():
    config = SandboxConfig(backend="docker", docker={"host": sys.argv[1], "prewarm": 1})
    backend = await open_backend(config, Path(sys.argv[2]))
    boxes = [await backend.start(SandboxSpec(memory_mb=64)) for _ in range(3)]
    busy = [asyncio.create_task(box.exec(["sleep", "99"], timeout_s=99)) for box in boxes]
    print("ready", flush=True)
    await asyncio.gather(*busy)
asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(engine: dockerd.Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(engine.config(), tmp_path_factory.mktemp("state"))
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def client(engine: dockerd.Engine) -> Iterator[Any]:
    api = docker.APIClient(base_url=engine.host)
    yield api
    api.close()


class TestCore:
    """What of the suite there is time for after every change."""

    test_output = SandboxSuite.test_output_exit_code_and_signal_of_a_command
    test_timeout = SandboxSuite.test_timeout_keeps_output_and_kills_all_that_the_command_started
    test_view = SandboxSuite.test_a_view_sees_the_result_but_neither_processes_nor_planted_verifiers
    test_terminal = SandboxSuite.test_a_terminal_keeps_its_state_and_reports_its_prompt


@pytest.mark.nightly
class TestDocker(SandboxSuite):
    """The suite of every backend."""


@pytest.mark.nightly
class TestEscapes(EscapeSuite):
    @pytest_asyncio.fixture(scope="class", loop_scope="module")
    async def box(self, docker_backend: SandboxBackend) -> AsyncIterator[Sandbox]:
        started = await docker_backend.start(replace(SMALL, memory_mb=128, pids=64))
        yield started
        await started.stop()

    @pytest.mark.parametrize("attempt", [each for each in ATTEMPTS if each.name not in OWN], ids=lambda each: each.name)
    async def test_attempt_does_not_succeed(self, box: Sandbox, host: dict[str, object], attempt: Attempt) -> None:
        await super().test_attempt_does_not_succeed(box, host, attempt)

    async def test_what_else_a_container_may_change_is_its_own(
        self, box: Sandbox, docker_backend: SandboxBackend
    ) -> None:
        await sh(box, "chmod 600 /dev/null; touch /dev/planted; mkdir /sys/fs/cgroup/x")
        other = await docker_backend.start(SMALL)
        look = "stat -c %a /dev/null; ls /dev/planted /sys/fs/cgroup/x 2>/dev/null; ls /sys/kernel/debug"
        assert (await sh(other, look))[1] == "666\n"
        write = "for f in $(ls /sys/fs/cgroup/*/*limit* /sys/fs/cgroup/*.max); do echo 1 > $f && echo WRITTEN; done"
        assert "WRITTEN" not in (await sh(other, write))[1]
        await other.stop()


@pytest.mark.nightly
class TestMisuse(MisuseSuite):
    @pytest.fixture
    def backend(self, docker_backend: SandboxBackend) -> SandboxBackend:
        return docker_backend


async def test_an_engine_that_does_not_answer_is_told_with_one_sentence_and_asked_again(tmp_path: Path) -> None:
    config = SandboxConfig(backend="docker", docker={"host": f"unix://{tmp_path}/none.sock"})
    with pytest.raises(InfraFault, match=r"none.sock does not answer.*apt-get install docker.io") as caught:
        await open_backend(config, tmp_path)
    assert failure_of(caught.value) is Failure.INFRASTRUCTURE  # It was a refusal, and ended campaigns.


@pytest.mark.nightly
async def test_a_view_has_every_kind_of_change_and_follows_no_link(backend: SandboxBackend) -> None:
    box = await backend.start(replace(SMALL, files={"/app/old/inner": b"1", "/app/kept": b"2"}))
    script = """
    rm -r old; mkdir old; echo new > old/new; ln kept hard; mkfifo pipe; mkdir -m 700 private; touch private/x
    chown 65534:65534 kept; chmod 4711 kept; touch -d 2001-01-01 dated; ln -s /etc/passwd link
    rm -r /opt; ln -s /etc /opt; mv /srv /srv2; mkdir -p $(printf 'd%.0s/' $(seq 200)); head -c 3000000 /dev/zero > big
    mkdir $'no\\xfftext'; echo odd > $'no\\xfftext/\\xfe\\xfe'
    """
    await sh(box, script)
    view = await box.fork_view()
    look = """
    ls old; cat old/new; stat -c '%h %a %u:%g' kept; stat -c %F pipe; stat -c %a private; stat -c %Y dated
    readlink link /opt; ls -d /srv2; ls -d /srv; ls -d $(printf 'd%.0s/' $(seq 200)) | wc -c; stat -c %s big
    stat -c %U:%a /etc/passwd; cat $'no\\xfftext/\\xfe\\xfe'
    """
    assert (await sh(view, f"{{ {look} }} 2>/dev/null"))[1].split("\n") == [
        "new",
        "new", "2 4711 65534:65534", "fifo", "700", "978307200", "/etc/passwd", "/etc", "/srv2", "401", "3000000",
        "root:644",
        "odd", "",
    ]  # fmt: skip
    assert view.left.reverted == ()
    await view.stop()
    await box.stop()


@pytest.mark.nightly
async def test_an_image_is_built_once_however_many_ask(
    backend: SandboxBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = images.Images._build

    def counted(self: images.Images, api: Any, tag: str, *rest: Any) -> Iterator[str]:
        built.append(tag)
        return build(self, api, tag, *rest)

    monkeypatch.setattr(images.Images, "_build", counted)
    image = read_image(tmp_path, "FROM debian:12", "WORKDIR /app", "RUN echo $RANDOM > once")
    boxes = await asyncio.gather(*(backend.start(replace(SMALL, image=image)) for _ in range(4)))
    said = {(await sh(box, "cat once"))[1] for box in boxes}
    await asyncio.gather(*(box.stop() for box in boxes))
    await (await backend.start(replace(SMALL, image=image))).stop()
    assert (len(said), len(built)) == (1, 1)


@pytest.mark.nightly
async def test_an_image_whose_volumes_no_verifier_would_see_is_refused(
    backend: SandboxBackend, client: Any, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nVOLUME /data\n")
    assert b"Successfully" in b"".join(client.build(path=str(tmp_path), tag="longshell-test/volume:1"))
    with pytest.raises(InfraFault, match="VOLUME /data") as caught:
        await backend.start(replace(SMALL, image=ImageSpec("longshell-test/volume:1")))
    assert caught.value.cause is FaultCause.IMAGE


@pytest.mark.nightly
async def test_a_ready_box_that_has_died_is_not_handed_out(engine: dockerd.Engine, client: Any, tmp_path: Path) -> None:
    backend = await open_backend(engine.config(prewarm=1), tmp_path)
    mine = {"label": f"{reaper.LEASE}={backend.lease}"}
    first = await backend.start(SMALL)
    for _ in range(200):
        names = {box["Names"][0].lstrip("/") for box in client.containers(filters=mine)}
        if len(names) > 1:
            break
        await asyncio.sleep(0.05)
    for name in names - {first.id}:
        client.kill(name)
    second = await backend.start(SMALL)
    assert await sh(second, "echo alive") == (0, "alive\n")
    await backend.close()
    assert client.containers(all=True, filters=mine) == []


@pytest.mark.nightly
async def test_a_killed_manager_s_boxes_end_and_the_next_one_removes_them(
    engine: dockerd.Engine, client: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", MANAGER, engine.host, str(tmp_path)]
    manager = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert manager.stdout is not None
    assert manager.stdout.readline() == b"ready\n"
    mine = [box for box in client.containers() if json.loads(box["Labels"][reaper.OWNER])["pid"] == manager.pid]
    assert len(mine) >= 3
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait()
    manager.stdout.close()
    for _ in range(200):
        if not {box["Id"] for box in mine} & {box["Id"] for box in client.containers()}:
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the boxes of a killed manager still run")
    backend = await open_backend(engine.config(), tmp_path)
    lease = mine[0]["Labels"][reaper.LEASE]
    assert client.containers(all=True, filters={"label": f"{reaper.LEASE}={lease}"}) == []
    assert [each["Name"] for each in client.volumes()["Volumes"] if each["Name"] == lease] == []
    await backend.close()


@pytest.mark.nightly
async def test_a_killed_engine_is_a_fault_and_after_its_return_nothing_is_left(tmp_path: Path) -> None:
    if dockerd.missing():
        pytest.skip(dockerd.missing())
    with dockerd.engine() as engine:
        backend = await open_backend(engine.config(), tmp_path)
        box = await backend.start(SMALL)
        terminal = await box.terminal(rows=24, columns=80, echo=True)
        pending = asyncio.create_task(box.exec(["sleep", "60"], timeout_s=90))
        await asyncio.sleep(0.2)
        engine.kill()
        with pytest.raises(InfraFault, match="does not answer") as caught:
            await asyncio.wait_for(pending, 20)
        assert caught.value.cause is FaultCause.SANDBOX
        for action in (terminal.new_output(), box.fork_view(), backend.start(SMALL)):
            with pytest.raises(InfraFault):
                await action
        with pytest.raises(InfraFault):
            await box.stop()
        engine.start()
        again = await backend.start(SMALL)
        assert await sh(again, "echo back") == (0, "back\n")
        await backend.close()
        client = docker.APIClient(base_url=engine.host)
        assert client.containers(all=True) == []
        assert not client.volumes()["Volumes"]
        assert engine.containers_groups() == []
        client.close()
