"""What an engine does not bound by itself: a box's disk, a build's time, the room of images; records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio

from components.config import SandboxConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.harness import run_trial
from components.sandbox import SandboxBackend, SandboxSpec, open_backend
from components.sandbox.docker import backend as docker_backend_module
from components.sandbox.docker import images
from tests import dockerd
from tests.conformance.sandbox_suite import read_image, sh
from tests.harness.parts import FakePolicy, PlainTask, answer, terse, trajectory

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module")]
SMALL = SandboxSpec(memory_mb=64, disk_mb=16, pids=32)
FILL = "for n in 1 2 3 4 5 6; do head -c 12000000 /dev/zero > /app/fill$n; done"
FILL_WITHOUT_END = "while :; do n=$((n + 1)); head -c 12000000 /dev/zero > /app/fill$n; sleep .1; done"


@pytest.fixture
def client(engine: dockerd.Engine) -> Iterator[Any]:
    api = docker.APIClient(base_url=engine.host)
    yield api
    api.close()


@pytest_asyncio.fixture(loop_scope="module")
async def weighing(
    engine: dockerd.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SandboxBackend]:
    """A backend that looks at what its boxes hold without pause."""
    monkeypatch.setattr(docker_backend_module, "WEIGH_EVERY_S", 0.2)
    opened = await open_backend(engine.config(), tmp_path)
    yield opened
    await opened.close()


async def test_who_fills_the_disk_is_ended_and_the_shell_that_started_it_is_not(weighing: SandboxBackend) -> None:
    box = await weighing.start(SMALL)
    terminal = await box.terminal(rows=10, columns=80, echo=False)
    await terminal.send(f"bash -c '{FILL}; sleep 99'\n")
    assert await terminal.settle(20, at_prompt=True)
    assert "Killed" in await terminal.new_output()
    await terminal.send("rm /app/fill*; echo freed > /app/state\n")
    assert await terminal.settle(20, at_prompt=True)
    assert await box.get("/app/state") == b"freed\n"
    await asyncio.sleep(1)
    assert terminal.alive
    await box.stop()


async def test_a_trial_that_overfills_its_disk_is_graded_as_its_policy_s_doing(
    weighing: SandboxBackend, tmp_path: Path
) -> None:
    """It had ended as a fault of the infrastructure, which a policy may not bring about."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text("[ -e /app/fill1 ] && r=0; echo ${r-1} > /logs/verifier/reward.txt\n")

    async def trial(*commands: str) -> Any:
        return await run_trial(
            PlainTask(tests, SMALL),
            trial_id="t1",
            backend=weighing,
            trajectory=trajectory(FakePolicy(*(answer(command) for command in commands))),
            config=terse(max_command_s=20.0, patience_s=20.0),
            sandbox=SandboxConfig(),
            agent_timeout_s=60,
            verifier_timeout_s=30,
        )

    overfilled = await trial(FILL_WITHOUT_END.replace("sleep .1", "read -t .1 < /dev/zero"))
    assert overfilled.fault is None
    assert overfilled.stop is StopReason.GAVE_UP, "its shell had been writing"
    assert overfilled.report.outcome is False
    emptied = await trial(f"bash -c '{FILL}; sleep 99'", "rm /app/fill*")
    assert (emptied.fault, emptied.stop, emptied.report.outcome) == (None, StopReason.COMPLETED, True)


async def test_a_program_under_test_that_fills_the_disk_does_not_end_its_verifier(weighing: SandboxBackend) -> None:
    box = await weighing.start(replace(SMALL, files={"/app/program": FILL_WITHOUT_END.encode()}))
    await sh(box, "head -c 10000000 /dev/zero > /app/much; cp /app/much /app/more; cp /app/much /app/most")
    view = await box.fork_view()  # of more than its own disk
    await asyncio.sleep(1)
    verify = "bash /app/program; echo judged $?; rm /app/fill*; sleep 1; echo whole"
    result = await view.exec(
        [view.shell, "--norc", "-c", verify], timeout_s=40, secret=b"nonce\n", merge_stderr=False, cwd="/app"
    )
    assert result.output == b"judged 137\nwhole\n"
    await view.stop()
    await box.stop()


@pytest.mark.parametrize("step", ["while :; do echo more; done", "sleep 600"])
async def test_a_build_is_ended_when_its_time_is_up_whatever_it_says(
    engine: dockerd.Engine, client: Any, tmp_path: Path, step: str
) -> None:
    (tmp_path / "environment").mkdir()
    image = read_image(tmp_path / "environment", "FROM debian:12", f"RUN {step}")
    backend = await open_backend(engine.config(), tmp_path / "state")
    began = time.monotonic()
    with pytest.raises(InfraFault, match=r"line 2: RUN .* was ended: the build took more than 2 s") as caught:
        await backend.start(replace(SMALL, image=image, setup_timeout_s=2.0))
    assert caught.value.cause is FaultCause.IMAGE
    assert time.monotonic() - began < 200
    for _ in range(600):
        if not [box for box in client.containers(all=True) if step in box["Command"]]:
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("what the build ran runs on")
    await backend.close()


async def test_the_longest_unused_images_are_removed_and_none_that_a_box_is_made_of(
    engine: dockerd.Engine, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "RECENT_S", 0.0)
    config = engine.config().model_copy(update={"built_mb": 25})
    one, other = [await open_backend(config, tmp_path / name) for name in ("one", "other")]

    def spec(number: int) -> SandboxSpec:
        folder = tmp_path / f"environment{number}"
        folder.mkdir(exist_ok=True)
        run = f"RUN head -c 10000000 /dev/urandom > /app/big && echo {number} > /app/number"
        return replace(SMALL, image=read_image(folder, "FROM debian:12", "WORKDIR /app", run))

    def built() -> set[str]:
        return {
            tag for image in client.images() for tag in image["RepoTags"] or () if tag.startswith("longshell/task:")
        }

    boxes = [await one.start(spec(0))]
    (first,) = built()
    await (await other.start(spec(1))).stop()
    (second,) = built() - {first}
    await (await one.start(spec(2))).stop()
    assert built() >= {first}, "a box lives of it"
    assert second not in built()
    boxes.append(await other.start(spec(1)))
    assert (await sh(boxes[1], "cat number"))[1] == "1\n", "what is asked for again is built again"
    await boxes[0].reset()
    assert (await sh(boxes[0], "cat number"))[1] == "0\n"
    await asyncio.gather(*(box.stop() for box in boxes))
    await asyncio.gather(*(backend._images.collect() for _ in range(3) for backend in (one, other)))
    assert len(built()) == 2
    await asyncio.gather(one.close(), other.close())


async def test_an_image_that_is_collected_before_its_box_is_made_is_built_again(
    engine: dockerd.Engine, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environment").mkdir()
    image = read_image(tmp_path / "environment", "FROM debian:12", "WORKDIR /app", "RUN echo again > said")
    backend = await open_backend(engine.config(), tmp_path / "state")
    use, lost = images.Images._use, []

    async def used(self: images.Images, tag: str) -> Any:
        found = await use(self, tag)
        if found is not None and not lost:
            lost.append(tag)
            client.remove_image(tag)
        return found

    monkeypatch.setattr(images.Images, "_use", used)
    box = await backend.start(replace(SMALL, image=image))
    assert (await sh(box, "cat said"))[1] == "again\n"
    assert lost
    await backend.close()


@pytest.mark.parametrize(
    "forge", ["mv /var/lib /srv/lib; ln -s /srv/lib /var/lib", "mv /var /srv/var; ln -s /srv/var /var"]
)
async def test_links_among_the_records_lead_a_view_nowhere_and_are_told(
    engine: dockerd.Engine, tmp_path: Path, forge: str
) -> None:
    """`/var/lib/dpkg` is a record of the system, and was the agent's where `/var/lib` was a link of its."""
    (tmp_path / "environment").mkdir()
    records = "RUN mkdir -p /var/lib/dpkg /var/cache/apt && echo Package: image > /var/lib/dpkg/status"
    image = read_image(tmp_path / "environment", "FROM debian:12", records)
    backend = await open_backend(engine.config(), tmp_path / "state")
    box = await backend.start(replace(SMALL, image=image))
    assert await sh(box, f"cd /; {forge}; echo forged > /var/lib/dpkg/status; echo work > /srv/work") == (0, "")
    view = await box.fork_view()
    seen = "cat /var/lib/dpkg/status /srv/work; stat -c %F /var /var/lib"
    assert await sh(view, seen) == (0, "Package: image\nwork\ndirectory\ndirectory\n")
    assert f"replaced {forge.split()[1]}" in view.left.reverted
    await backend.close()
