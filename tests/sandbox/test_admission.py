"""When boxes are made: at a rate that all processes share, and not on a full disk."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import SandboxConfig
from components.sandbox import admission, open_backend
from components.sandbox.admission import Admission, StartClock
from tests.conformance.sandbox_suite import sh
from tests.disks import small_disk
from tests.sandbox.conftest import SMALL, needs_root

REPOSITORY = Path(__file__).parents[2]
ASK = """
import sys
from pathlib import Path
from components.sandbox.admission import StartClock
clock = StartClock(Path(sys.argv[1]), 10.0, now=lambda: 1000.0)
print(*(clock.reserve() for _ in range(40)))
"""


@given(st.lists(st.floats(0, 3), max_size=60), st.sampled_from([0.5, 3.0, 20.0]))
def test_no_span_of_time_has_more_starts_than_the_rate_allows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[float], rate: float
) -> None:
    now = 50.0
    clock = StartClock(tmp_path_factory.mktemp("clock") / "starts", rate, now=lambda: now)
    starts: list[float] = []
    for step in steps:
        now += step
        starts.append(now + clock.reserve())
    assert starts == sorted(starts)
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert last - first + 1 <= max(1.0, rate) + rate * (starts[last] - starts[first]) + 1e-6


def test_processes_share_one_bucket(tmp_path: Path) -> None:
    asking = [
        subprocess.Popen([sys.executable, "-c", ASK, str(tmp_path / "starts")], cwd=REPOSITORY, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    waits = sorted(float(word) for process in asking for word in process.communicate()[0].split())
    assert waits == pytest.approx([max(0.0, (n + 1) / 10 - 1) for n in range(80)], abs=1e-6)


@pytest.mark.parametrize("left", ["", "half a li", "another-boot 99999999.0 .\n", "\xff\xfe", "x" * 5000])
def test_what_a_crash_or_another_boot_left_counts_as_nothing(tmp_path: Path, left: str) -> None:
    (tmp_path / "starts").write_text(left)
    waits = [StartClock(tmp_path / "starts", 1.0, now=lambda: 1000.0).reserve() for _ in range(2)]
    assert waits == pytest.approx([0.0, 1.0])


async def test_creation_pauses_on_a_full_disk_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = namedtuple("usage", "total used free")
    free = [100 << 20]
    monkeypatch.setattr(admission.shutil, "disk_usage", lambda place: usage(0, 0, free[0]))
    monkeypatch.setattr(admission, "LOOK_AGAIN_S", 0.01)
    gate = Admission(tmp_path, min_free_mb=500, starts_per_s=1000, clock=tmp_path / "starts")
    with caplog.at_level(logging.WARNING):
        waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert "100 MiB free (sandbox.min_free_mb is 500)" in caplog.text
        waiting[0].cancel()
        free[0] = 600 << 20
        await asyncio.wait_for(asyncio.gather(*waiting[1:]), 60)
        assert "started again" in caplog.text
    assert gate.counts["low_disk_pauses"] == 1
    assert gate.counts["low_disk_s"] > 0


async def test_a_start_that_comes_too_early_waits_and_is_counted(tmp_path: Path) -> None:
    gate = Admission(tmp_path, min_free_mb=0, starts_per_s=20, clock=tmp_path / "starts")
    gate._clock = StartClock(tmp_path / "starts", 20, now=lambda: 1000.0)
    begin = time.monotonic()
    await asyncio.gather(*(gate.enter() for _ in range(22)))
    assert time.monotonic() - begin >= 0.1 - 1e-6, "the last one comes that much too early"
    assert gate.counts["rate_waits"] == 2
    assert gate.counts["rate_wait_s"] == pytest.approx(0.05 + 0.1)


def test_the_folder_of_the_host_is_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission.tempfile, "gettempdir", lambda: str(tmp_path))
    assert admission.host_folder() == tmp_path / f"longshell-{os.getuid()}"
    assert admission.host_folder().stat().st_mode & 0o777 == 0o700


@needs_root
async def test_a_backend_on_a_disk_that_fills_up_waits_and_its_boxes_work_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "LOOK_AGAIN_S", 0.02)
    with small_disk(tmp_path / "state", 64) as disk:
        backend = await open_backend(SandboxConfig(min_free_mb=32), disk.folder)
        box = await backend.start(SMALL)
        disk.fill(leave=8 << 20)
        waiting = asyncio.create_task(backend.start(SMALL))
        async with asyncio.timeout(60):
            while not backend.counts["low_disk_pauses"]:
                await asyncio.sleep(0.005)
        assert await sh(box, "echo work > f; cat f") == (0, "work\n")
        assert not waiting.done()
        assert backend.counts["low_disk_pauses"] == 1
        disk.free()
        await (await asyncio.wait_for(waiting, 60)).stop()
        await box.stop()
        await backend.close()
