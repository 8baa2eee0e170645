"""The order of a publication, with samplers that only keep a diary."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.errors import FaultCause, InfraFault
from components.publish import DiskPublisher, barrier
from components.publish.barrier import Publication, Roll, at_barrier
from tests.waiting import SkippingLoop


class Diary:
    """A sampler that writes down what it is told. `fails` is the call that raises, `hangs` the one that never ends."""

    def __init__(self, *, served: int = 7, fails: str = "", hangs: str = "") -> None:
        self.calls: list[str] = []
        self.weight_version = served
        self._fails, self._hangs = fails, hangs

    def __getattr__(self, name: str) -> Any:
        async def call(*_: object) -> Diary:
            self.calls.append(name)
            if name == self._fails:
                raise InfraFault(FaultCause.SAMPLER, f"{name} failed")
            if name == self._hangs:
                await asyncio.sleep(60)
            return self

        return call


async def run(samplers: list[Diary], timeout_s: float = 60.0) -> Publication:
    async def transfer(roll: Roll) -> None:
        await roll.each(lambda sampler: sampler.update_weights())  # type: ignore[call-arg]

    return await at_barrier(samplers, 7, timeout_s, transfer)  # type: ignore[arg-type]


async def test_a_sampler_pauses_before_it_flushes_and_resumes_after_it_was_verified() -> None:
    sampler = Diary()
    assert (await run([sampler])).lost == {}
    assert sampler.calls == ["pause", "flush_cache", "update_weights", "info", "resume"]


async def test_none_resumes_before_every_one_is_verified() -> None:
    order: list[str] = []

    class Slow(Diary):
        async def info(self) -> Diary:
            await asyncio.sleep(0.05)
            order.append("verified")
            return self

    class Quick(Diary):
        async def resume(self) -> None:
            order.append("resumed")

    await run([Slow(), Quick()])
    assert order == ["verified", "resumed"]


async def test_one_that_reports_another_version_is_lost_and_stays_paused() -> None:
    stale, fine = Diary(served=6), Diary()
    publication = await run([stale, fine])
    assert list(publication.lost) == [0]
    assert "version 7 was published, 6 is served" in str(publication.lost[0])
    assert "resume" not in stale.calls
    assert "resume" in fine.calls


async def test_one_that_fails_anywhere_is_asked_nothing_more() -> None:
    for call in ("pause", "flush_cache", "update_weights", "info"):
        failing, fine = Diary(fails=call), Diary()
        assert list((await run([failing, fine])).lost) == [0]
        assert failing.calls[-1] == call
        assert fine.calls[-1] == "resume"


async def test_a_folder_is_written_before_the_barrier_and_outside_its_deadline_while_samplers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Found by a reader: a save of 3 s under a deadline of 2 s lost every sampler, and nothing else ran meanwhile.
    clock, loop, went_on = [0.0], asyncio.get_running_loop(), threading.Event()
    monkeypatch.setattr(barrier, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    samplers = [Diary(), Diary()]

    class Slow:
        def save_hf(self, folder: Path) -> None:
            clock[0] += 3.0
            assert not any(sampler.calls for sampler in samplers)
            loop.call_soon_threadsafe(went_on.set)
            assert went_on.wait(10), "the event loop stands"

    publication = await DiskPublisher(tmp_path, timeout_s=2.0).publish(samplers, Slow(), 7)  # type: ignore[arg-type]
    assert (publication.lost, publication.seconds) == ({}, 0.0)
    assert all(sampler.calls[-1] == "resume" for sampler in samplers)


def test_one_that_hangs_anywhere_leaves_the_others_time_and_is_named_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("pause", "update_weights", "resume"):
        hanging, fine = Diary(hangs=call), Diary()
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            monkeypatch.setattr(barrier, "time", SimpleNamespace(monotonic=runner.get_loop().time))
            publication = runner.run(run([hanging, fine], timeout_s=20.0))
        assert list(publication.lost) == [0]
        assert "did not answer in its time" in str(publication.lost[0])
        assert publication.seconds == 10.0, "half of the time that was left"
        assert fine.calls[-1] == "resume"
