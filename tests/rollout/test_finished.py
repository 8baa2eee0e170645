"""Trials that ended before their step did are not run again."""

import os
import signal
import time

import numpy as np
import pytest

from components.errors import StoreError
from components.rollout import (
    Barrier,
    FinishedTrials,
    Interrupted,
    Journals,
    Origin,
    Outcome,
    Rollout,
    Unfinished,
    trial_id,
)
from tests.rollout.parts import config, faulted, graded, reward, sample_of, tasks


def keep(finished, step, trial):
    finished.put(step, trial, [sample_of(trial)], reward())


def test_a_kept_trial_is_found_again_whole(tmp_path):
    (task,) = tasks(1)
    trial = graded("t1", task.ref, count=3)
    keep(FinishedTrials(tmp_path), 7, trial)
    again = FinishedTrials(tmp_path).get("t1")
    assert (again.trial.task, again.trial.report, len(again.trial.turns)) == (task.ref, trial.report, 3)
    assert np.array_equal(again.samples[0].routing, sample_of(trial).routing)
    assert "t1" in FinishedTrials(tmp_path)
    assert "t2" not in FinishedTrials(tmp_path)
    assert FinishedTrials(tmp_path).get("t2") is None


def test_a_trial_is_kept_once(tmp_path):
    trial = graded("t1", tasks(1)[0].ref)
    finished = FinishedTrials(tmp_path)
    keep(finished, 7, trial)
    with pytest.raises(StoreError, match="never changes"):
        keep(finished, 7, trial)


def test_a_damaged_trial_is_told_of_and_runs_again(tmp_path, caplog):
    trial = graded("t1", tasks(1)[0].ref)
    finished = FinishedTrials(tmp_path)
    keep(finished, 7, trial)
    next(tmp_path.glob("*/t1/arrays.safetensors")).write_bytes(b"short")
    assert finished.get("t1") is None
    assert "runs again" in caplog.text
    keep(finished, 7, trial)
    assert finished.get("t1") is not None


def test_trials_of_earlier_steps_are_forgotten(tmp_path):
    first, second = (task.ref for task in tasks(2))
    finished = FinishedTrials(tmp_path)
    keep(finished, 7, graded("t1", first))
    keep(finished, 8, graded("t2", second))
    finished.forget_before(8)
    assert finished.get("t1") is None
    assert finished.get("t2") is not None


async def test_a_trial_that_waits_for_a_place_longer_than_a_step_is_not_forgotten(tmp_path):
    # rollout.oversample above 1, or many that starved: what ended in the tail of step 0 was admitted in step 2.
    finished = FinishedTrials(tmp_path)

    async def run(attempt):
        if (kept := finished.get(attempt.trial_id)) is not None:
            return kept.trial
        trial = graded(attempt.trial_id, attempt.task.ref)
        keep(finished, step, trial)
        return trial

    settings, supply = config(batch=2, oversample=3, tail="carry"), tasks(40)
    rollout = Rollout(campaign="c", config=settings, run_trial=run, barrier=Barrier(), finished=finished)
    owed: list[tuple] = []
    for step in range(3):
        finished.forget_before(step - 1, {trial.trial_id for _, trial in owed})
        assert all(trial.trial_id is None or trial.trial_id in finished for _, trial in owed)
        result = await rollout.step(step, step, supply[8 * step :], owed)
        by_name = {task.ref.task_id: task for task in supply}
        owed = [(by_name[trial.task_id], trial) for trial in result.unfinished]
        assert len(owed) > 2


def test_a_writer_killed_anywhere_leaves_whole_trials_only(tmp_path):
    refs = [task.ref for task in tasks(400)]
    child = os.fork()
    if child == 0:
        finished = FinishedTrials(tmp_path)
        for number, ref in enumerate(refs):
            keep(finished, 0, graded(f"t{number}", ref))
        os._exit(0)
    deadline = time.monotonic() + 60
    while "t0" not in FinishedTrials(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.15)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    finished = FinishedTrials(tmp_path)
    found = [number for number in range(400) if f"t{number}" in finished]
    assert found == list(range(len(found))) != []
    assert all(finished.get(f"t{number}") is not None for number in found)


async def test_a_step_that_is_tried_again_takes_what_had_ended_and_runs_the_rest(tmp_path):
    finished, ran = FinishedTrials(tmp_path), []

    async def run(attempt):
        if (kept := finished.get(attempt.trial_id)) is not None:
            return kept.trial
        ran.append(attempt.trial_id)
        if len(ran) == 4:
            raise ZeroDivisionError("stands for a kill")
        trial = graded(attempt.trial_id, attempt.task.ref)
        keep(finished, 0, trial)
        return trial

    def rollout():
        settings = config(batch=6, oversample=0, concurrency=1)
        return Rollout(campaign="c", config=settings, run_trial=run, barrier=Barrier(), finished=finished)

    with pytest.raises(ZeroDivisionError):
        await rollout().step(0, 0, tasks(8))
    before, ran[:] = ran[:3], []
    result = await rollout().step(0, 0, tasks(8))
    assert not set(ran) & set(before)
    assert len(ran) == 3
    assert {trial.trial_id for trial in result.trials} == {*ran, *before}


async def test_a_trial_that_ended_in_the_tail_counts_in_the_next_step_also_of_another_process(tmp_path):
    supply, finished = tasks(8), FinishedTrials(tmp_path)
    keep(finished, 0, graded("ended", supply[0].ref))

    async def run(attempt):
        kept = finished.get(attempt.trial_id)
        return graded(attempt.trial_id, attempt.task.ref) if kept is None else kept.trial

    settings = config(batch=4, oversample=0, tail="carry")
    rollout = Rollout(campaign="c", config=settings, run_trial=run, barrier=Barrier(), finished=finished)
    returning = [(supply[0], Unfinished("files-0", "ended", 0, 1)), (supply[1], Unfinished("files-1", "lost", 0, 1))]
    result = await rollout.step(1, 1, supply[2:], returning)
    rows = {row.task_id: row for row in result.ledger.rows}
    assert (rows["files-0"].trial_id, rows["files-0"].origin) == ("ended", Origin.RETURNED)
    assert rows["files-1"].trial_id != "lost"
    assert rows["files-0"].outcome is Outcome.ADMITTED


async def test_a_trial_that_ended_as_a_later_attempt_is_taken_when_the_step_is_tried_again(tmp_path):
    finished, ran, faulty, dies = FinishedTrials(tmp_path), [], {"files-0": 2, "files-1": 1}, ["files-3"]

    async def run(attempt):
        task = attempt.task.ref
        if (kept := finished.get(attempt.trial_id)) is not None:
            return kept.trial
        ran.append((task.task_id, attempt.attempt))
        if attempt.attempt <= faulty.get(task.task_id, 0):
            return faulted(attempt.trial_id, task)
        if task.task_id in dies:
            raise ZeroDivisionError("stands for a kill")
        keep(finished, 0, trial := graded(attempt.trial_id, task))
        return trial

    def rollout():
        settings = config(batch=4, oversample=0, concurrency=1, max_attempts=3, max_fault_share=1.0)
        return Rollout(campaign="c", config=settings, run_trial=run, barrier=Barrier(), finished=finished)

    with pytest.raises(ZeroDivisionError):
        await rollout().step(0, 0, tasks(4))
    before = {place.name for place in tmp_path.glob("0*/*")}
    assert ("files-0", 3) in ran
    assert ("files-1", 2) in ran
    ran.clear()
    dies.clear()
    faulty["files-3"] = 2
    result = await rollout().step(0, 0, tasks(4))
    assert before <= {trial.trial_id for trial in result.trials}, "none that had ended is lost"
    assert ran == [("files-3", 1), ("files-3", 2), ("files-3", 3)]
    ended = {row.task_id: row.attempt for row in result.ledger.rows if row.fault is None}
    assert ended == {"files-0": 3, "files-1": 2, "files-2": 1, "files-3": 3}


async def test_of_a_trial_that_had_ended_it_is_not_told_that_it_starts_anew(tmp_path):
    # Killed between the end of its box and that of its journal, which is what a box that is gone looks like.
    finished, interrupted = FinishedTrials(tmp_path / "ended"), Interrupted(Journals(tmp_path / "alive"))
    supply = tasks(1)
    name = trial_id("c", 0, supply[0].ref.task_id, 1)
    keep(finished, 0, graded(name, supply[0].ref))
    interrupted.lost[name] = "its job ended, and its box is gone"

    async def run(attempt):
        return finished.get(attempt.trial_id).trial

    settings = config(batch=1, oversample=0)
    rollout = Rollout(
        campaign="c",
        config=settings,
        run_trial=run,
        barrier=Barrier(),
        finished=finished,
        interrupted=interrupted,
    )
    (row,) = (await rollout.step(0, 0, supply)).ledger.rows
    assert (row.trial_id, row.outcome, row.detail) == (name, Outcome.ADMITTED, "")
