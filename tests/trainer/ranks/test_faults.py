"""Ranks that die, hang, refuse, or lose their parent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from components.errors import FaultCause, InfraFault, RecordError
from components.trainer.ranks import Ranks, pool
from tests.trainer.ranks import functions


def gone(pids: list[int], timeout_s: float = 20.0) -> bool:
    """Whether all of these processes end within the time."""
    deadline = time.monotonic() + timeout_s
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_call_runs_on_every_rank_and_what_a_rank_keeps_stays(ranks: Ranks) -> None:
    assert ranks.call(functions.total, 10.0) == [21.0, 21.0]
    assert ranks.call(functions.keep, "a", 1) == [None, None]
    assert ranks.call(functions.keep, "a", 2) == [1, 1]


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0, 4), (1_000, 1_000)])
def test_arrays_arrive_as_they_were_in_shared_memory(ranks: Ranks, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert ranks.call(functions.describe, array) == [("float32", list(shape), False)] * 2
    for answer in ranks.call(functions.double, [array, array.astype(np.uint8)]):
        np.testing.assert_array_equal(answer[0], array * 2)
        np.testing.assert_array_equal(answer[1], array.astype(np.uint8) * 2)


def test_a_refusal_on_every_rank_is_raised_and_the_ranks_go_on(ranks: Ranks) -> None:
    with pytest.raises(RecordError, match="refused by rank 0"):
        ranks.call(functions.refuse, None, collective=False)
    with pytest.raises(RecordError, match="refused by rank 1"):
        ranks.call(functions.refuse, 1, collective=False)
    with pytest.raises(RuntimeError, match="Unpicklable: 1 and 2"):
        ranks.call(functions.refuse_strangely)
    assert ranks.call(functions.total, 0.0) == [1.0, 1.0]


def test_a_killed_rank_is_reported_with_its_last_words_and_takes_the_others_along(tmp_path: Path) -> None:
    with Ranks(2, logs=tmp_path) as pair:
        pids = pair.pids
        with pytest.raises(RecordError):
            pair.call(functions.refuse, 0, collective=False)
        with pytest.raises(
            InfraFault, match=r"rank 1 of 2 was killed by SIGKILL; its last words:\n(.*\n)*out of"
        ) as caught:
            pair.call(functions.die, 1, "out of luck")
        assert caught.value.cause is FaultCause.TRAINER
        assert gone(pids)
        with pytest.raises(InfraFault, match="out of luck"):
            pair.call(functions.total, 1.0)
    assert "refused by rank 0" in (tmp_path / "trainer-rank-0.log").read_text(), "kept where it was wanted"


@pytest.mark.nightly
def test_ranks_end_with_their_block() -> None:
    with Ranks(1) as ranks:
        pids = ranks.pids
        ranks.call(functions.total, 0.0)
    assert gone(pids, 1.0)
    with pytest.raises(InfraFault, match="were ended"):
        ranks.call(functions.total, 1.0)


def test_a_rank_that_waits_for_one_that_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.5)
    with Ranks(2) as ranks:
        pids = ranks.pids
        with pytest.raises(RecordError, match="refused by rank 1"):
            ranks.call(functions.refuse, 1, collective=True)
        assert gone(pids)
        with pytest.raises(InfraFault, match="did not answer after another failed"):
            ranks.call(functions.total, 1.0)


@pytest.mark.nightly
def test_a_rank_that_stands_still_is_given_up_by_the_others_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.5)
    with Ranks(2, timeout_s=2.0) as ranks:
        pids = ranks.pids
        with pytest.raises(RuntimeError, match=r"[Tt]imed out|[Cc]onnection"):
            ranks.call(functions.stop, 0)
        assert gone(pids)


def hold(told: int, state: str) -> None:
    """What a process does that holds ranks: tells their ids, then waits, for them or for nothing."""
    try:
        pair = Ranks(2)
        pair.call(functions.total, 0.0)
        os.write(told, f"{pair.pids[0]} {pair.pids[1]}\n".encode())
        if state == "busy":
            pair.call(functions.stop, 0)
        time.sleep(3_600)
    finally:
        os._exit(1)


@pytest.mark.parametrize("state", [pytest.param("idle", marks=pytest.mark.nightly), "busy"])
def test_no_rank_outlives_a_parent_that_was_killed(state: str) -> None:
    heard, told = os.pipe()
    parent = os.fork()  # an interpreter of its own would import torch for seconds, like each of the ranks
    if not parent:
        hold(told, state)
    os.close(told)
    with os.fdopen(heard) as lines:
        pids = [int(pid) for pid in lines.readline().split()]
    assert len(pids) == 2
    if state == "busy":
        time.sleep(0.2)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone(pids)
