"""Images: what FROM finds, what is built over it, once, and what a killed builder leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from components.config import PoolConfig, SandboxConfig
from components.curation.gates import gate
from components.errors import FaultCause, InfraFault
from components.pool import load_task
from components.sandbox import ImageSpec, RunStep, SandboxSpec, ZygoteBackend, read_dockerfile
from components.sandbox.base_image import main
from components.sandbox.store import ImageStore, Stack
from tests.conformance.sandbox_suite import sh
from tests.disks import small_disk
from tests.sandbox.conftest import NOBODY, needs_root
from tests.sandbox.small_root import NAME, make_root, small_base

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_root]
REPOSITORY = Path(__file__).parents[2]
LIMITS = {"memory_mb": 128, "disk_mb": 32, "pids": 64}
BUILDER = """
import asyncio, sys
from pathlib import Path
from components.sandbox import SandboxSpec, ZygoteBackend, read_dockerfile
async def main():
    state, images, environment = map(Path, sys.argv[1:])
    backend = await ZygoteBackend.open("namespace/root", state, images=images)
    print(backend.lease, flush=True)
    await backend.start(SandboxSpec(image=read_dockerfile(environment), memory_mb=128, disk_mb=32))
    print("built", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="longshell-images-"))
    folder.chmod(0o755)
    small_base(ImageStore(folder), folder)
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(images: Path, state_dir: Path) -> AsyncIterator[ZygoteBackend]:
    opened = await ZygoteBackend.open("namespace/root", state_dir, images=images)
    yield opened
    await opened.close()


def image(folder: Path, *lines: str) -> ImageSpec:
    """What a Dockerfile with these lines after FROM asks for."""
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text("\n".join([f"FROM {NAME}", *lines, ""]))
    return read_dockerfile(folder)


async def test_a_box_has_the_system_of_its_image_and_nothing_of_the_host(
    backend: ZygoteBackend, tmp_path: Path
) -> None:
    box = await backend.start(SandboxSpec(image=image(tmp_path, "WORKDIR /app"), **LIMITS))
    assert (await sh(box, "ls /usr/bin | head -3; ls -A /app; echo $OF_IMAGE; stat -c %u:%g /etc/passwd /usr/bin/ls"))[
        1
    ] == "bash\ncat\nchmod\ngiven\nyes\n0:0\n0:0\n"
    assert (await sh(box, "cat /etc/hosts | head -1; [ -e /usr/bin/python3 ] || echo none"))[1].endswith("none\n")
    assert (await sh(box, "ls -d /images /work /box 2>&1 | grep -c 'No such'"))[1] == "3\n"
    await box.stop()


async def test_every_instruction_does_what_it_does_in_docker(backend: ZygoteBackend, tmp_path: Path) -> None:
    (tmp_path / "tool.sh").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool.sh").chmod(0o755)
    spec = image(
        tmp_path,
        "RUN chown worker:worker /home/worker",
        "ARG VERSION=7",
        "ARG EMPTY",
        "ENV HOME_OF=/srv/${VERSION} LEFT=${EMPTY:-otherwise}",
        "WORKDIR $HOME_OF",
        "COPY tool.sh /app/given",
        "COPY tool.sh /usr/bin/tool",
        "RUN echo $VERSION > version && ls /app/given >> version && tool >> version",
        "USER worker",
        "RUN id -un > /home/worker/me; echo $HOME >> /home/worker/me",
        "RUN [ -w /etc/passwd ] && echo root >> /home/worker/me || id -G >> /home/worker/me",
    )
    box = await backend.start(SandboxSpec(image=spec, workdir=spec.workdir, **LIMITS))
    assert (await sh(box, "cat version ~/me; pwd; id -u; echo $HOME; echo [$VERSION] $LEFT; touch /etc/x"))[1] == (
        "7\ntool.sh\ntool\nworker\n/home/worker\n1000 2000\n/srv/7\n1000\n/home/worker\n[] otherwise\n"
        "touch: cannot touch '/etc/x': Permission denied\n"
    )
    terminal = await box.terminal(rows=10, columns=80, echo=False)
    await terminal.send("id -u; touch ~/by-terminal\n")
    await terminal.settle(10, at_prompt=True)
    assert "1000" in await terminal.new_output()
    view = await box.fork_view()
    assert await sh(view, "id -u; stat -c %U ~worker/by-terminal") == (0, "0\nworker\n")
    await view.stop()
    await box.stop()


async def test_a_layer_keeps_what_run_removed_replaced_linked_and_owned(backend: ZygoteBackend, tmp_path: Path) -> None:
    spec = image(
        tmp_path,
        "RUN rm -rf /opt/removed && mkdir /opt/removed && touch /opt/removed/new && rm /usr/bin/seq",
        "RUN cd /app && echo x > a && ln a b && ln -s a c && chown 1000:2000 a && chmod 4751 a && mkdir -m 1777 d",
        "RUN echo more >> /etc/passwd",
    )
    box = await backend.start(SandboxSpec(image=spec, workdir="/app", **LIMITS))
    told = (
        "ls /opt/removed; ls /usr/bin/seq; stat -c '%u %g %a %h' a b; readlink c; stat -c %a d; grep -c . /etc/passwd"
    )
    assert (await sh(box, told))[1].replace("'", "") == (
        "new\nls: cannot access /usr/bin/seq: No such file or directory\n"
        "1000 2000 4751 2\n1000 2000 4751 2\na\n1777\n3\n"
    )
    await box.stop()


async def test_an_image_is_built_once_by_whoever_asks_first_in_this_process_or_another(
    backend: ZygoteBackend, images: Path, tmp_path: Path
) -> None:
    spec = SandboxSpec(image=image(tmp_path, "RUN head -c 9 /dev/urandom > /app/id; sleep .1"), **LIMITS)
    other = await ZygoteBackend.open("namespace/root", tmp_path, images=images)
    boxes = await asyncio.gather(*(opened.start(spec) for opened in (backend, other, backend, other)))
    assert len({await box.get("/app/id") for box in boxes}) == 1
    await sh(boxes[0], "echo changed > /app/id")
    await boxes[0].reset()
    assert await boxes[0].get("/app/id") == await boxes[1].get("/app/id")
    await asyncio.gather(*(box.stop() for box in boxes))
    await other.close()


@pytest.mark.nightly
async def test_a_killed_builder_leaves_nothing_and_the_next_one_builds(images: Path, tmp_path: Path) -> None:
    mark = f"86{os.getpid()}.5"
    image(tmp_path / "environment", f"RUN echo whole > /app/f; sleep {mark} && true")
    before = set((images / "layers").iterdir())
    (tmp_path / "state").mkdir()
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(tmp_path / "state"), str(images), str(tmp_path / "environment")],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert builder.stdout is not None
    assert builder.stdout.readline().strip()
    deadline = time.monotonic() + 20
    while not _runs(mark):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    while _runs(mark):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert set((images / "layers").iterdir()) == before
    again = await ZygoteBackend.open("namespace/root", tmp_path, images=images)
    spec = image(tmp_path / "environment", "RUN echo whole > /app/f; sleep 0 && true")
    box = await again.start(SandboxSpec(image=spec, **LIMITS))
    assert await box.get("/app/f") == b"whole\n"
    await again.close()


def _runs(argument: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


async def test_a_half_written_layer_is_swept_and_one_that_is_being_written_is_not(images: Path) -> None:
    store = ImageStore(images)
    for key in ("left", "held"):
        (images / "layers" / f".{key}" / "root" / "deep").mkdir(parents=True)
    async with store.making("held"):
        assert store.sweep() == ["left"]
    assert store.layer("left") is None
    assert store.sweep() == ["held"]
    left = images / ".making-killed"
    (left / "root").mkdir(parents=True)
    with store.workplace() as place:
        for folder in (left, place):
            os.utime(folder, (0, 0))
        assert store.sweep() == [".making-killed"]
        assert place.is_dir()
    assert not list(images.glob(".making-*"))


@pytest.mark.nightly
async def test_an_archive_becomes_an_image_once_and_takes_names_over(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    subprocess.run(["tar", "-C", str(root), "-cf", str(tmp_path / "root.tar"), "."], check=True)
    into = ["--into", str(tmp_path / "images"), "--archive", str(tmp_path / "root.tar")]
    assert main([*into, "--name", "first", "--name", "other:2", "--env", "A=1"]) == 0
    assert main([*into, "--name", "second", "--file", f"/opt/added={__file__}"]) == 0
    assert main([*into, "--name", "first:latest", "--name", "third"]) == 0
    store = ImageStore(tmp_path / "images")
    assert len(list(store.bases())) == 2
    assert store.base("first").names == ("first:latest", "other:2", "third:latest")
    added = tmp_path / "images" / "bases" / store.base("second").key / "root" / "opt" / "added"
    assert added.read_bytes() == Path(__file__).read_bytes()
    with pytest.raises(LookupError, match=r"fourth:latest \(first:latest, other:2"):
        store.base("fourth")
    (tmp_path / "root.tar").write_bytes(b"no tar")
    assert main([*into, "--name", "bad"]) == 2
    assert not list((tmp_path / "images").glob(".making-*"))


async def test_a_box_that_does_not_fit_on_the_disk_is_not_saved_in_part_and_lives_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "images", 24) as disk:
        opened = await ZygoteBackend.open("namespace/root", tmp_path, images=disk.folder)
        box = await opened.start(SandboxSpec(**LIMITS))
        await sh(box, "head -c 8000000 /dev/urandom > big")
        disk.fill(leave=2 << 20)
        with pytest.raises(InfraFault, match="No space") as caught:
            await box.snapshot()
        assert caught.value.cause is FaultCause.SANDBOX
        assert list((disk.folder / "layers").iterdir()) == []
        disk.free()
        saved = await box.snapshot()
        copy = await opened.start(SandboxSpec(snapshot=saved, **LIMITS))
        assert await copy.get("/app/big") == await box.get("/app/big")
        await opened.close()


async def test_a_layer_that_cannot_be_written_whole_leaves_nothing(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="File exists"):
        ImageStore(images).save("twice", Stack(), {"usr": folder, "usr/": folder}, shift=None)
    os.close(folder)
    assert not [path for path in (images / "layers").iterdir() if "twice" in path.name]


async def test_an_unknown_base_and_a_failing_run_are_image_faults_with_their_line(
    backend: ZygoteBackend, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("# comment\nFROM nobody/has:this\nRUN true\n")
    with pytest.raises(InfraFault, match=rf"line 2: FROM nobody/has:this.*{NAME}.*make image") as caught:
        await backend.start(SandboxSpec(image=read_dockerfile(tmp_path), **LIMITS))
    assert caught.value.cause is FaultCause.IMAGE
    for _ in range(2):  # a failure is not remembered as a build
        with pytest.raises(InfraFault, match=r"line 2.*exited 9.*because") as caught:
            await backend.start(SandboxSpec(image=image(tmp_path, "RUN echo because; exit 9"), **LIMITS))
        assert caught.value.cause is FaultCause.IMAGE
    with pytest.raises(InfraFault, match=r"nobody-there"):
        await backend.start(SandboxSpec(image=image(tmp_path, "USER nobody-there", "RUN true"), **LIMITS))


async def test_a_view_shows_the_image_s_system_and_records_and_the_agent_s_work(
    backend: ZygoteBackend, tmp_path: Path
) -> None:
    spec = image(tmp_path, "RUN echo Package: built >> /var/lib/dpkg/status; echo tool > /usr/bin/tool")
    box = await backend.start(SandboxSpec(image=spec, **LIMITS))
    forge = (
        "echo forged > /usr/bin/cat; rm /usr/bin/tool; echo x >> /etc/passwd; "
        "echo work > /app/work; mkdir /logs; echo 1 > /logs/reward; rm /lib64; ln -s /app /lib64"
    )
    await sh(box, forge)
    view = await box.fork_view()
    assert sorted(view.left.reverted) == [
        "changed /etc/passwd", "changed /usr/bin/cat", "planted /logs/reward", "removed /usr/bin/tool",
        "replaced /lib64",
    ]  # fmt: skip
    seen = "cat /usr/bin/tool /app/work /var/lib/dpkg/status; ls /logs; grep -c . /etc/passwd; readlink /lib64"
    assert await sh(view, seen) == (0, "tool\nwork\nPackage: image\nPackage: built\n2\nusr/lib64\n")
    assert (await view.exec([view.shell, "-c", "echo ran"], timeout_s=10)).output == b"ran\n"
    assert (await sh(view, f"cat {view.shell}"))[0] == 1
    await view.stop()
    await box.stop()


async def test_without_privileges_images_of_one_s_own_are_built_over_and_saved_too(state_dir: Path) -> None:
    images = state_dir / "own-images"
    small_base(ImageStore(images), state_dir)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(images)], check=True)
    opened = await ZygoteBackend.open("namespace/unprivileged", state_dir, images=images, become_uid=NOBODY)
    steps = "rm -rf /opt/removed; mkdir /opt/removed; echo x > /usr/bin/x; rm /usr/bin/seq"
    spec = SandboxSpec(image=ImageSpec(NAME, steps=(RunStep(steps, "/app", {}, 2),)), **LIMITS)
    box = await opened.start(spec)
    seen = "ls /opt/removed; cat /usr/bin/x; [ -e /usr/bin/seq ] || echo none; stat -c %u /usr/bin/x /usr/bin/ls"
    assert await sh(box, seen) == (0, "x\nnone\n0\n0\n")
    await sh(box, "echo work > work; echo forged > /usr/bin/cat")
    view = await box.fork_view()
    assert view.left.reverted == ("changed /usr/bin/cat",)
    assert await sh(view, "cat work /usr/bin/x") == (0, "work\nx\n")
    copy = await opened.start(replace(spec, snapshot=await box.snapshot()))
    assert (await sh(copy, "read -r x < work; echo $x; [ -e /usr/bin/seq ] || echo none"))[1] == "work\nnone\n"
    await opened.close()


async def test_what_a_spec_adds_to_its_image_is_a_layer_that_views_show(backend: ZygoteBackend, tmp_path: Path) -> None:
    files = {"/usr/bin/added": b"tool\n"}
    setup = ("echo Package: set-up >> /var/lib/dpkg/status; echo $WHO > /app/who",)
    spec = SandboxSpec(
        image=image(tmp_path, "RUN echo x > /app/x"), files=files, setup=setup, env={"WHO": "me"}, **LIMITS
    )
    box = await backend.start(spec)
    await sh(box, "rm /usr/bin/added; echo forged > /usr/bin/cat; echo work > /app/work")
    view = await box.fork_view()
    assert await sh(view, "cat /usr/bin/added /app/x /app/who /app/work; grep -c set-up /var/lib/dpkg/status") == (
        0,
        "tool\nx\nme\nwork\n1\n",
    )
    await view.stop()
    await box.reset()
    assert await sh(box, "cat /usr/bin/added; ls /app/work 2>&- || echo none") == (0, "tool\nnone\n")
    await box.stop()


async def test_a_snapshot_holds_what_its_box_was_laid_over(root_backend: ZygoteBackend) -> None:
    spec = SandboxSpec(setup=("echo set > /usr/local/set; echo up > /app/up",), **LIMITS)
    box = await root_backend.start(spec)
    await sh(box, "echo more >> /usr/local/set; rm /app/up")
    saved, again = await box.snapshot(), await box.snapshot()
    copy = await root_backend.start(replace(spec, snapshot=saved))
    assert (await sh(copy, "cat /usr/local/set; ls /app"))[1] == "set\nmore\n"
    view = await copy.fork_view()
    assert (await sh(view, "cat /usr/local/set"))[1] == "set\nmore\n"  # where it starts, that is the system
    await asyncio.gather(view.stop(), copy.stop(), box.stop())
    layers = root_backend._store.folder / "layers"
    await root_backend.forget(saved)
    assert len(list(layers.iterdir())) == 2
    await root_backend.forget(again)
    assert list(layers.iterdir()) == []


async def test_links_among_the_records_lead_a_view_nowhere(backend: ZygoteBackend, tmp_path: Path) -> None:
    box = await backend.start(SandboxSpec(image=image(tmp_path), **LIMITS))
    await sh(box, "rm -rf /var/lib; ln -s /usr /var/lib; rm -rf /var/cache; echo x > /var/cache")
    view = await box.fork_view()
    assert (await sh(view, "cat /var/lib/dpkg/status"))[1] == "Package: image\n"
    assert (await sh(view, "ls /usr/bin/cat"))[0] == 0
    await view.stop()
    await box.stop()


async def test_a_harbor_task_with_a_dockerfile_passes_every_gate(backend: ZygoteBackend, tmp_path: Path) -> None:
    folder = tmp_path / "count-lines"
    for name in ("environment", "tests", "solution"):
        (folder / name).mkdir(parents=True)
    (folder / "instruction.md").write_text("Write the number of lines of poem.txt to /app/count.\n")
    (folder / "task.toml").write_text('version = "1.0"\n[environment]\nmemory = "128M"\n')
    (folder / "environment" / "poem.txt").write_text("one\ntwo\nthree\n")
    image(folder / "environment", "WORKDIR /app", "COPY poem.txt .", "RUN grep -c . poem.txt > /usr/bin/true-count")
    (folder / "solution" / "solve.sh").write_text("grep -c . poem.txt > count\n")
    (folder / "tests" / "test.sh").write_text(
        "cd /app; if [[ $(cat count) == $(cat /usr/bin/true-count) ]]; then r=1; else r=0; fi\n"
        "echo $r > /logs/verifier/reward.txt\n"
        "[[ $r == 1 ]] && o=passed || o=failed\n"
        'printf \'{"collected":["count"]}\\n{"id":"count","outcome":"%s"}\\n{"finished":true}\\n\' $o '
        "> /logs/verifier/assertions.jsonl\n"
    )
    limits = SandboxConfig(memory_mb=128, disk_mb=32)
    result = await gate(load_task(folder), backend, PoolConfig(), limits)
    assert (result.rejection, result.fail_to_pass, result.detail) == (None, ("count",), "")
