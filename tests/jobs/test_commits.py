"""Commits behind the work that goes on: when they appear, what a kill leaves, what is kept, what is continued from."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from components.artifacts import LocalStore
from components.config import load, validate
from components.errors import CheckpointError, StoreError
from components.jobs.commits import Commits, Position, refused_states, resume, state_key
from components.jobs.job import Job
from components.jobs.rl import held
from components.trainer import State, Trainer

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"


class Counting:
    """As much of a trainer as a commit needs: its state is one number."""

    def __init__(self, number: int = 0) -> None:
        self.numbers = np.full(1_000, number, np.uint8)

    def state(self) -> State:
        return State({"numbers": self.numbers.copy()})


class Gated(LocalStore):
    """Writes folders when it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.open = threading.Event(), threading.Event()

    def put_tree(self, key: str, folder: Path) -> None:
        self.asked.set()
        assert self.open.wait(10)
        super().put_tree(key, folder)


class Broken(LocalStore):
    def put_tree(self, key: str, folder: Path) -> None:
        raise StoreError(f"no room for {key}")


def make_job(folder: Path, store: Callable[[Path], LocalStore] = LocalStore, keep_last: int = 2) -> Job:
    config = load(MINIATURE, [f"checkpoints.keep_last={keep_last}", "rl.leg_steps=3"])
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    return Job("rl", "c", 1, config, {"state": None}, store(folder / "store"), folder / "scratch")


def commit(job: Job, steps: Sequence[int], **more: Any) -> None:
    with Commits(job, "rl", first=steps[0], total=10, **more) as commits:
        for step in steps:
            metrics = {"loss": float(step), "explained": math.nan, "time/step": time.monotonic()}
            commits.commit(step, cast(Trainer, Counting(step)), metrics)


def number(position: Position) -> int:
    assert position.state is not None
    return int(np.frombuffer((position.state / "numbers").read_bytes(), np.uint8)[0])


def states(job: Job) -> list[int]:
    return [int(key.split("/")[-2]) for key in job.store.list(job.key("rl", "steps")) if key.endswith("/state")]


def damage(job: Job, step: int, how: str = "change") -> None:
    file = job.store.tree(state_key(job, "rl", step)) / "numbers"
    if how == "change":
        file.write_bytes(b"\xff" * 1_000)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:10])
    elif how == "lose":
        file.unlink()
    else:
        job.store.delete(state_key(job, "rl", step))


def test_the_next_step_runs_while_a_commit_is_written_and_does_not_change_it(tmp_path: Path) -> None:
    job = make_job(tmp_path, Gated)
    store, trainer = cast(Gated, job.store), Counting(7)
    with Commits(job, "rl", first=0, total=2) as commits:
        commits.commit(0, cast(Trainer, trainer), {"loss": 1.0})
        trainer.numbers += 1
        assert store.asked.wait(10)
        assert job.committed("rl") == [], "no record before the state is on disk"
        store.open.set()
        commits.wait()
        assert job.committed("rl") == [0]
    assert number(resume(job, "rl", 2, begins=True)) == 7
    record = job.record("rl", 0)
    assert record["metrics"].keys() == {"loss", "time/save"}


def test_one_commit_at_most_is_under_way(tmp_path: Path) -> None:
    job = make_job(tmp_path, Gated)
    copied = []

    class Watched(Counting):
        def state(self) -> State:
            copied.append(job.committed("rl"))
            return super().state()

    with Commits(job, "rl", first=0, total=2) as commits:
        commits.commit(0, cast(Trainer, Watched()), {})
        opening = threading.Timer(0.05, cast(Gated, job.store).open.set)
        opening.start()
        commits.commit(1, cast(Trainer, Watched()), {})
    assert copied == [[], [0]], "the second state was copied when the first was on disk"
    assert job.committed("rl") == [0, 1]


def test_a_commit_that_cannot_be_written_is_raised_by_the_next_or_at_the_end_and_nothing_follows_it(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path, Broken)
    for steps in ([0, 1], [0]):
        with pytest.raises(StoreError, match=r"no room for .*000000/state"):
            commit(job, steps)
        assert job.committed("rl") == []


def test_a_scratch_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    shutil.rmtree(job.folder)
    job.folder.write_text("not a folder")
    with pytest.raises(StoreError, match=f"step 0 is not committed: {job.folder}"):
        commit(job, [0])


def _stopped_after_a_commit(job: Job) -> None:
    with Commits(job, "rl", first=0, total=2) as commits:
        commits.commit(0, cast(Trainer, Counting()), {})
        raise SystemExit(143)


def test_what_ends_a_stage_does_not_lose_the_commit_under_way_or_hide_that_it_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, kind in (("whole", LocalStore), ("broken", Broken)):
        job = make_job(tmp_path / name, kind)
        with pytest.raises(SystemExit):
            _stopped_after_a_commit(job)
        assert job.committed("rl") == ([0] if kind is LocalStore else [])
    assert "the last commit was lost: no room for" in caplog.text


def _killed(job: Job, calls: int) -> bool:
    """Commits step 1 in a process that is killed at its `calls`-th change of the disk."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)
    left = calls

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    try:
        for place, name in ((os, "fsync"), (os, "rmdir"), (os, "unlink"), (Path, "rename"), (Path, "unlink")):
            setattr(place, name, dying(getattr(place, name)))
        commit(job, [1])
    finally:
        os._exit(0)


def test_a_kill_at_any_change_of_the_disk_leaves_the_last_commit_and_no_litter(tmp_path: Path) -> None:
    """The records that are there are those of the first steps, the newest has its state, and what is left of a killed
    write or deletion is gone when the next attempt ends."""
    calls, seen = 0, set()
    commit(make_job(tmp_path / "0", keep_last=1), [0])
    while True:
        calls += 1
        shutil.copytree(tmp_path / "0", tmp_path / str(calls), symlinks=True)
        job = make_job(tmp_path / str(calls), keep_last=1)
        if not _killed(job, calls):
            break
        done = job.committed("rl")
        assert done == list(range(len(done)))
        position = resume(job, "rl", 2, begins=True)
        assert (position.step, number(position)) == (len(done), len(done) - 1)
        assert refused_states(job, "rl") == []
        seen.add(len(done))
        if position.step < 2:
            commit(job, [1])
        else:
            Commits(job, "rl", first=2, total=2)
        assert job.committed("rl") == [0, 1]
        data = Path(job.store.url) / ".data" / job.key("rl", "steps")
        kept = {path.parent.parent.name for path in data.rglob("*.tree")}
        assert kept == {"000001"}
        assert not list(data.rglob(".tmp-*"))
        shutil.rmtree(tmp_path / str(calls))
    assert seen == {1, 2}
    assert calls > 20, "files, folders, renames, links and deletions"


@pytest.mark.parametrize("how", ["change", "cut", "lose", "delete"])
def test_a_damaged_state_is_refused_and_said_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    job = make_job(tmp_path)
    commit(job, range(4))
    damage(job, 3, how)
    position = resume(job, "rl", 6, begins=True)
    assert (position.step, number(position)) == (3, 2)
    (refused,) = refused_states(job, "rl")
    assert (refused["step"], refused["continued_at"]) == (3, 3)
    assert state_key(job, "rl", 3) in refused["cause"]
    assert f"the state after step 3 is refused ({refused['cause']}): continuing at step 3" in caplog.text
    assert refused_states(replace(job, index=2), "rl") == [], "another leg has nothing to do with it"


def test_a_stage_without_a_whole_state_begins_anew_where_it_can(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    commit(job, range(3))
    for step in (1, 2):
        damage(job, step)
    with pytest.raises(CheckpointError, match=r"rl cannot continue before step 6.*000002/state is corrupt.*000001"):
        resume(job, "rl", 6, begins=False)
    assert resume(job, "rl", 6, begins=True) == Position(0, None)
    assert [state["step"] for state in refused_states(job, "rl")] == [1, 2]


def test_a_step_that_is_taken_again_keeps_its_record_and_replaces_its_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(tmp_path)
    commit(job, range(4))
    damage(job, 3)
    before = (Path(job.store.url) / job.key("rl", "steps", "000003", "record.json")).read_bytes()
    with caplog.at_level(logging.INFO, "longshell"):
        commit(job, [3, 4])
    assert "step 3 was taken again: its figures are those of its record" in caplog.text
    assert (Path(job.store.url) / job.key("rl", "steps", "000003", "record.json")).read_bytes() == before
    assert job.record("rl", 4)["metrics"]["resume/redone_steps"] == 1
    assert states(job) == [3, 4]
    assert number(resume(job, "rl", 4, begins=False)) == 3
    with Commits(job, "rl", first=4, total=5) as commits:
        commits.commit(4, cast(Trainer, Counting(4)), {"loss": 4.5, "explained": math.nan})
    assert "step 4 was taken again and differs from its record, which stays: loss 4.0 -> 4.5" in caplog.text


def test_states_that_were_passed_over_do_not_crowd_out_whole_ones(tmp_path: Path) -> None:
    job = make_job(tmp_path, keep_last=3)
    commit(job, range(5))
    for step in (3, 4):
        damage(job, step)
    position = resume(job, "rl", 9, begins=True)
    assert position.step == 3
    commit(job, [3])
    assert states(job) == [2, 3, 4], "step 4 will be taken again"
    assert number(resume(job, "rl", 9, begins=True)) == 3


def test_the_last_states_are_kept_with_a_legs_beginning_and_the_best_evaluated_leg(tmp_path: Path) -> None:
    job = make_job(tmp_path)

    def evaluated(leg: int, pass_rate: float | None) -> None:
        result = {"checkpoint": job.key("rl", "legs", leg, "checkpoint"), "pass_rate": pass_rate}
        job.store.put_json(job.key("jobs", f"c-evaluate-{leg + 1}-0123", "result.json"), result)

    job.store.put_json(job.key("jobs", "c-evaluate-0-0123", "result.json"), {"checkpoint": "base", "pass_rate": 0.9})
    commit(job, range(3), held=lambda: held(job, 0))
    assert states(job) == [1, 2]
    commit(job, range(3, 6), held=lambda: held(job, 3))
    assert states(job) == [2, 4, 5], "leg 1 may still be evaluated"
    evaluated(1, 0.5)
    commit(job, range(6, 9), held=lambda: held(job, 6))
    assert states(job) == [2, 5, 7, 8]
    evaluated(2, 0.6)
    evaluated(3, None)
    commit(job, range(9, 12), held=lambda: held(job, 9))
    assert states(job) == [5, 8, 10, 11], "leg 2 is the best now"
    plain = replace(job, config=load(MINIATURE, ["checkpoints.keep_best=false", "rl.leg_steps=3"]))
    commit(plain, range(12, 14), held=lambda: held(plain, 12))
    assert states(job) == [11, 12, 13]


def test_a_state_of_another_configuration_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    commit(job, range(2))
    document = job.config.model_dump(mode="json")
    document["ppo"]["clip"], document["seed"] = 0.3, 5
    changed = replace(job, config=validate(document, "test"))
    with pytest.raises(CheckpointError, match=r"000001/state was .*: put these keys back") as refused:
        resume(changed, "rl", 9, begins=True)
    assert "(ppo.clip was 0.2, is 0.3; seed was 1, is 5)" in str(refused.value)
    document = job.config.model_dump(mode="json")
    document["trainer"]["layout"]["tp"], document["rl"]["legs"] = 2, 7
    assert number(resume(replace(job, config=validate(document, "test")), "rl", 9, begins=True)) == 1


def test_a_state_that_does_not_say_its_configuration_is_not_continued_from(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    State({"numbers": np.zeros(3, np.uint8)}).write(tmp_path / "old")
    job.store.put_tree(state_key(job, "rl", 0), tmp_path / "old")
    job.commit("rl", 0, {}, total=1)
    with pytest.raises(CheckpointError, match="does not say under which configuration"):
        resume(job, "rl", 9, begins=True)
