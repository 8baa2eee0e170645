"""Batches as files."""

import json
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import FaultCause, StoreError
from components.records import Sampling, Turn
from components.rollout import Ledger, Origin, Outcome, load_batch, save_batch
from components.rollout.spool import _pack_turns, _unpack_turns
from components.routing import checksum
from tests.rollout.parts import faulted, graded, reward, sample_of, tasks


def batch(count=3):
    supply = tasks(count)
    trials = [graded(f"t{i}", task.ref, passed=i % 2 == 0, count=i + 1) for i, task in enumerate(supply)]
    ledger = Ledger(7)
    for trial in trials:
        ledger.launch(trial.trial_id, trial.task, 1, origin=Origin.DRAWN)
        ledger.end(trial.trial_id, Outcome.ADMITTED, turns=len(trial.turns))
    return trials, [sample_of(trial) for trial in trials], [reward() for _ in trials], ledger


def test_a_batch_reads_back_as_it_was_written(tmp_path):
    trials, samples, rewards, ledger = batch()
    save_batch(tmp_path / "step-7", trials, samples, rewards, ledger)
    again = load_batch(tmp_path / "step-7")
    for before, after in zip(samples, again.samples, strict=True):
        for name in ("tokens", "loss_mask", "logprobs", "routing"):
            one, other = getattr(before, name), getattr(after, name)
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        assert (before.trial_id, before.chunk, before.boundaries) == (after.trial_id, after.chunk, after.boundaries)
        assert before.routing_checksum == after.routing_checksum == checksum(after.routing)
    for before, after in zip(trials, again.trials, strict=True):
        assert (before.task, before.stop, before.report, before.facts) == (
            after.task,
            after.stop,
            after.report,
            after.facts,
        )
        for one, other in zip(before.turns, after.turns, strict=True):
            assert one.prompt_ids.tolist() == other.prompt_ids.tolist()
            assert one.completion_ids.tolist() == other.completion_ids.tolist()
            assert one.logprobs.tolist() == other.logprobs.tolist()
            assert (one.weight_version, one.sampling) == (other.weight_version, other.sampling)
    assert list(again.rewards) == rewards
    assert again.ledger.rows == ledger.rows


def test_faults_are_kept_with_their_cause(tmp_path):
    (task,) = tasks(1)
    ledger = Ledger(0)
    save_batch(tmp_path / "b", [faulted("f", task.ref, FaultCause.IMAGE)], [], [reward()], ledger)
    (trial,) = load_batch(tmp_path / "b").trials
    assert (trial.fault.cause, trial.fault.detail, trial.turns) == (FaultCause.IMAGE, "gone", ())


def test_a_committed_batch_never_changes(tmp_path):
    save_batch(tmp_path / "b", *batch())
    with pytest.raises(StoreError, match="committed already"):
        save_batch(tmp_path / "b", *batch())


def test_a_long_trial_takes_the_space_of_its_last_turn(tmp_path):
    trials, _, rewards, ledger = batch(1)
    long = graded("t0", trials[0].task, count=300)
    save_batch(tmp_path / "b", [long], [sample_of(long)], rewards, ledger)
    assert (tmp_path / "b" / "arrays.safetensors").stat().st_size < 40 * len(sample_of(long).tokens)


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage", "format"])
def test_a_damaged_batch_is_a_store_error(tmp_path, damage):
    folder = tmp_path / "b"
    if damage != "missing":
        save_batch(folder, *batch())
    if damage == "truncated":
        os.truncate(folder / "arrays.safetensors", 100)
    elif damage == "garbage":
        (folder / "batch.json").write_text("{")
    elif damage == "format":
        document = json.loads((folder / "batch.json").read_text())
        (folder / "batch.json").write_text(json.dumps(document | {"format": 99}))
    with pytest.raises(StoreError):
        load_batch(folder)


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        save_batch(tmp_path / "file" / "b", *batch())


IDS = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@given(st.lists(st.tuples(IDS, IDS), max_size=6))
@settings(deadline=None)
def test_turns_of_any_history_are_stored_exactly(pairs):
    made = [
        Turn(np.int32(p), np.int32(a), -np.float32(a), None, 1, "stop", Sampling(0.5, top_k=len(a)), len(p) % 2 == 0)
        for p, a in pairs
    ]
    again = _unpack_turns(*_pack_turns(made))

    def plain(turns):
        arrays = [(t.prompt_ids.tolist(), t.completion_ids.tolist(), t.logprobs.tolist()) for t in turns]
        return arrays, [(t.sampling, t.opens) for t in turns]

    assert plain(again) == plain(made)


def test_a_writer_killed_anywhere_leaves_whole_batches_only(tmp_path):
    made = batch(40)
    for number in range(15):
        folder = tmp_path / str(number)
        folder.mkdir()
        writer = os.fork()
        if writer == 0:
            for step in range(10_000):
                save_batch(folder / f"step-{step}", *made)
            os._exit(0)
        deadline = time.monotonic() + 30
        while not list(folder.glob("step-*")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.0007 * number)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        committed = list(folder.glob("step-*"))
        assert committed
        assert all(len(load_batch(one).samples) == 40 for one in committed)


def test_one_trial_is_read_without_the_arrays_of_the_others(tmp_path):
    trials, samples, rewards, ledger = batch()
    save_batch(tmp_path / "step-7", trials, samples, rewards, ledger)
    one = load_batch(tmp_path / "step-7", only={"t1"})
    (trial,), (sample,) = one.trials, one.samples
    assert (trial.trial_id, trial.report, sample.trial_id) == ("t1", trials[1].report, "t1")
    for found, put in (
        (trial.turns[-1].prompt_ids, trials[1].turns[-1].prompt_ids),
        (sample.tokens, samples[1].tokens),
    ):
        assert found.tolist() == put.tolist()
    assert one.rewards == (rewards[1],)
    assert one.ledger.rows == ledger.rows
    assert load_batch(tmp_path / "step-7", only={"nobody"}).trials == ()
