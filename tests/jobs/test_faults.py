"""Faults that the jobs of other projects had (the public report is named)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.job_submission import JobStatus
from safetensors.numpy import load_file, save_file

import components.jobs.leg as leg_module
from components import cluster, tito
from components.artifacts import LocalStore
from components.cluster import Cluster, JobSpec
from components.config import PoolConfig, load
from components.errors import DriftError, Failure, FaultCause, JobFailed, ServiceError
from components.jobs import rollouts
from components.jobs.rollouts import Rollouts
from components.pool import Cursor, Pool, Split, Task, generate
from components.pool.directory import write_task
from components.pool.index import index_folder
from components.records import Sample, Trial, Turn
from components.rollout import Attempt, Ledger, Outcome, SpooledBatch, load_batch
from components.tito import Tokenizer
from tests.harness.parts import ByteTokenizer
from tests.jobs.test_reclaim import MINIATURE, leg, side_of
from tests.rollout.parts import graded, tasks
from tests.rollout.test_carry import end_all
from tests.sampler.conftest import model_folder, other_folder  # noqa: F401

CARRYING = (
    "rollout.batch=8",
    "rollout.oversample=0.25",
    "rollout.tail=carry",
    "rollout.starts_per_s=1000000",
    "reward.credit=count",
)
"""Ten trials a step, of which eight are admitted."""


@pytest.fixture
def small_pool(tmp_path: Path) -> Pool:
    for task in islice(generate(PoolConfig(), Split.TRAIN, seed=1), 24):
        write_task(task, tmp_path / "pool" / task.task_id)
    return index_folder(tmp_path / "pool")


class Leg:
    """The rollouts of one process after another, in a world whose trials end at once, or never where it is told."""

    def __init__(self, pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served: list[str] = []
        self.endless: set[str] = set()
        self.overrides: list[str] = []
        self.folder = folder
        self.pool = pool
        self.record: dict[str, Any] = {"cursor": asdict(Cursor(1)), "unfinished": []}
        monkeypatch.setattr(rollouts, "open_world", self.world)

    @asynccontextmanager
    async def world(self, *_: object, **__: object) -> AsyncIterator[Any]:
        fleet = SimpleNamespace(metrics=dict)
        backend = SimpleNamespace(counts={}, held={}, boxes={})
        yield SimpleNamespace(tokenizer=ByteTokenizer(), run=self.run, fleet=fleet, backend=backend, hosts=backend)

    async def run(self, attempt: Attempt[Task], *_: object, **__: object) -> Trial:
        self.served.append(attempt.task.ref.task_id)
        if attempt.task.ref.task_id in self.endless:
            await asyncio.Event().wait()
        return self.ended(graded(attempt.trial_id, attempt.task.ref, routing=True))

    def ended(self, trial: Trial) -> Trial:
        """What a trial comes to."""
        return trial

    async def process(self, step: int) -> list[str]:
        """A process that runs one step from the record before it, commits its own, and is killed. What it served."""
        self.served.clear()
        config = load(MINIATURE, [*CARRYING, *self.overrides]).model_dump(mode="json")
        folders = (str(self.folder / name) for name in ("scratch", "state", "finished"))
        actor = Rollouts("c", config, str(self.pool.folder), "checkpoint", 0, *folders)
        before = json.loads(json.dumps(self.record))
        batch = str(self.folder / f"batch-{step}")
        self.record = await actor.generate(step, step, before["cursor"], before["unfinished"], batch)
        await end_all()
        return list(self.served)


async def test_what_was_in_flight_at_a_restore_is_served_once_and_nothing_twice(
    small_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NeMo-RL #3599/#3594/#3429: a resume began at the cursor, past what was in flight: 675 of 736 prompts, the short.
    order = [ref.task_id for ref in small_pool.draw(Cursor(1), 18)[0]]
    running = Leg(small_pool, tmp_path, monkeypatch)
    running.endless = {order[7], order[9]}
    assert sorted(await running.process(0)) == sorted(order[:10])
    assert running.record["cursor"]["position"] == 10
    assert {owed["task_id"] for owed in running.record["unfinished"]} == {order[7], order[9]}
    running.endless = set()
    assert Counter(await running.process(1)) == Counter([order[7], order[9], *order[10:18]])
    assert running.record["cursor"]["position"] == 18 == len(order)
    batches = [load_batch(tmp_path / f"batch-{step}") for step in (0, 1)]
    trained = [trial.task.task_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == 16
    assert {*trained, *(owed["task_id"] for owed in running.record["unfinished"])} == set(order)


async def test_a_process_that_follows_a_killed_one_runs_no_trial_again_that_had_ended(
    small_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The paper's checkpoints restart a step from nothing: every trajectory of it is paid for twice.
    order = [ref.task_id for ref in small_pool.draw(Cursor(1), 10)[0]]
    running = Leg(small_pool, tmp_path, monkeypatch)
    running.endless = {order[2], order[5], order[9]}
    killed = asyncio.create_task(running.process(0))
    async with asyncio.timeout(20):
        while len(list((tmp_path / "finished").glob("*/*/batch.json"))) < 7:
            await asyncio.sleep(0.01)
    killed.cancel()
    await asyncio.wait([killed])
    assert not (tmp_path / "batch-0").exists(), "seven of ten: the step was under way"
    running.endless = set()
    assert set(await running.process(0)) <= {order[2], order[5], order[9]}
    assert running.record["metrics"]["rollout/reused"] == 7
    assert len(load_batch(tmp_path / "batch-0").trials) == 8


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["disk", "collective"])
def test_a_killed_sampler_is_started_anew_until_its_restarts_are_used_up(
    tmp_path: Path,
    model_folder: Path,  # noqa: F811
    other_folder: Path,  # noqa: F811
    method: str,
) -> None:
    # NeMo-RL #3613: an engine that kept dying was started again for ever; the run stood still and called that healthy.
    overrides = [f"publish.method={method}", "publish.timeout_s=30", "sampler.max_restarts=1", "sampler.slots=2"]
    config = load(MINIATURE, overrides)
    with side_of(config, model_folder, tmp_path) as side:
        running = leg(tmp_path, config, model_folder, other_folder, side)
        assert running._publish(1) == 0
        side.kill(0)
        assert running._publish(2) == 1
        assert side.version_of(0, model_folder) == 2
        assert running._publish(3) == 0
        side.kill(0)
        # Its end is seen by whoever looks first, its supervisor or the publication.
        seen = "ended with SIGKILL|lost while version 4 was published"
        with pytest.raises(ServiceError, match=rf"0 of 1 replicas are left(?s:.)*({seen})"):
            running._publish(4)


class EndedWell:
    """Ray, in which every job that it knows has SUCCEEDED."""

    def __init__(self, *_: object, **__: object) -> None:
        self.submitted: list[str] = []

    def submit_job(self, *, submission_id: str, **_: object) -> None:
        self.submitted.append(submission_id)

    def get_job_status(self, submission_id: str) -> JobStatus:
        if submission_id not in self.submitted:
            raise RuntimeError(f"404: Job {submission_id} does not exist")
        return JobStatus.SUCCEEDED

    def get_job_info(self, _: str) -> Any:
        return SimpleNamespace(driver_exit_code=0, message="")

    def get_job_logs(self, _: str) -> str:
        return "the last words\n"

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        yield "the last words\n"


def test_a_job_that_succeeded_without_a_result_is_neither_alive_nor_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # AReaL #1583: a job that Ray called COMPLETED was taken for alive and waited for. Only a result says done.
    monkeypatch.setattr(cluster, "JobSubmissionClient", EndedWell)
    store, spec = LocalStore(tmp_path / "store"), JobSpec("rl", "m-s1", 1, {}, {})
    ray = Cluster("http://ray", store)
    first = ray.submit(spec, {})
    with pytest.raises(JobFailed, match="SUCCEEDED with exit code 0") as ended:
        ray.follow(spec, first.id, lambda line: None, lambda: None)
    assert (ended.value.failure, ended.value.tail) == (Failure.INFRASTRUCTURE, "the last words")
    again = ray.submit(spec, {})
    assert [(first.id, first.attached), (again.id, again.attached)] == [(spec.base, False), (f"{spec.base}-r1", False)]
    store.put_json(spec.key("result.json"), {"step": 4})
    assert ray.follow(spec, again.id, lambda line: None, lambda: None) == {"step": 4}
    assert ray.submit(spec, {}).attached


def flipped(sample: Sample) -> Sample:
    tokens = sample.tokens.copy()
    tokens[np.flatnonzero(sample.loss_mask)[0]] += 1
    return replace(sample, tokens=tokens)


def permuted(sample: Sample) -> Sample:
    return replace(sample, routing=np.roll(sample.routing, 1, 0))


def chosen_twice(turn: Turn) -> Turn:
    routing = turn.routing.copy()
    routing[-1, 0] = 7
    return replace(turn, routing=routing)


def a_layer_more(turn: Turn) -> Turn:
    return replace(turn, routing=np.concatenate([turn.routing, turn.routing[:, :1]], axis=1))


def uncaptured(turn: Turn) -> Turn:
    return replace(turn, routing=None)


class Corrupting(Leg):
    """What is recorded of the trials of some tasks is damaged, in its last turn or in its stitched streams."""

    def __init__(self, pool: Pool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(pool, folder, monkeypatch)
        self.turns: dict[str, Callable[[Turn], Turn]] = {}
        self.streams: dict[str, Callable[[Sample], Sample]] = {}
        self.tasks: dict[str, str] = {}
        monkeypatch.setattr(rollouts, "stitch", self.stitch)

    def ended(self, trial: Trial) -> Trial:
        self.tasks[trial.trial_id] = trial.task.task_id
        *before, last = trial.turns
        return replace(trial, turns=[*before, self.turns.get(trial.task.task_id, lambda turn: turn)(last)])

    def stitch(self, turns: Sequence[Turn], tokenizer: Tokenizer, *, trial_id: str) -> list[Sample]:
        corrupt = self.streams.get(self.tasks[trial_id], lambda sample: sample)
        return [corrupt(sample) for sample in tito.stitch(turns, tokenizer, trial_id=trial_id)]


@pytest.mark.parametrize(
    ("where", "corrupt", "cause"),
    [
        ("streams", flipped, FaultCause.DRIFT),
        ("streams", permuted, FaultCause.CHECKSUM),
        ("turns", chosen_twice, FaultCause.RECORD),
        ("turns", a_layer_more, FaultCause.RECORD),
        ("turns", uncaptured, FaultCause.RECORD),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_record_that_is_not_of_what_was_sampled_costs_its_trial_and_no_other(
    small_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, corrupt: Any, cause: FaultCause
) -> None:
    # slime v0.3.0, NeMo #3297: what did not fit was padded and trained on. Here it had ended the whole leg.
    task = small_pool.draw(Cursor(1), 1)[0][0].task_id
    running = Corrupting(small_pool, tmp_path, monkeypatch)
    getattr(running, where)[task] = corrupt
    running.overrides = ["rollout.max_rejected_share=0.2"]
    served = await running.process(0)
    assert Counter(served)[task] == 2, "its task was tried again"
    batch, metrics = load_batch(tmp_path / "batch-0"), running.record["metrics"]
    assert len(batch.trials) == len(batch.rewards) == metrics["rollout/graded"] == 8
    assert task not in {trial.task.task_id for trial in batch.trials}
    assert {sample.trial_id for sample in batch.samples} == {trial.trial_id for trial in batch.trials}
    assert metrics["rollout/reward_mean"] == pytest.approx(2 / 20), "a rejected trial is in no mean"
    assert (metrics["rollout/rejected"], metrics[f"fault/{cause}"], metrics["tito/drift"]) == (2, 2, 0)
    rows = [row for row in batch.ledger.rows if row.fault is not None]
    assert {(row.task_id, row.outcome, row.fault) for row in rows} == {(task, Outcome.INFRA_FAULT, cause)}
    assert all("sample" in row.detail or "trial" in row.detail for row in rows)


async def test_drift_of_many_trials_ends_the_leg_by_name_and_leaves_no_batch(
    small_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The paper demands a drift of 0: what is wrong with every trial is no accident, and nothing may be trained on it.
    running = Corrupting(small_pool, tmp_path, monkeypatch)
    running.streams = dict.fromkeys((ref.task_id for ref in small_pool.draw(Cursor(1), 18)[0]), flipped)
    with pytest.raises(DriftError, match=r"rejected \(drift \d+\) where rollout\.max_rejected_share allows 1 of 10"):
        await running.process(0)
    assert not (tmp_path / "batch-0").exists()


async def test_a_finished_trial_whose_routing_was_damaged_on_disk_runs_again(
    small_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, record = Leg(small_pool, tmp_path, monkeypatch), {"cursor": asdict(Cursor(1)), "unfinished": []}
    served = await running.process(0)
    kept = sorted((tmp_path / "finished").glob("*/*/arrays.safetensors"))
    arrays = load_file(kept[0])
    save_file(arrays | {"s0.routing": np.ascontiguousarray(arrays["s0.routing"][::-1])}, kept[0])
    shutil.rmtree(tmp_path / "batch-0")
    running.record = record
    assert len(await running.process(0)) == 1 < len(served)
    assert running.record["metrics"]["rollout/reused"] == len(served) - 1
    assert "a finished trial runs again: sample" in caplog.text


def test_a_batch_that_was_damaged_in_the_store_costs_those_trials_until_they_are_too_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A checksum that failed at replay ended the leg, and every attempt at it.
    supply = tasks(4)
    trials = [graded(f"t{number}", task.ref, routing=True) for number, task in enumerate(supply)]
    samples = [tito.stitch(trial.turns, ByteTokenizer(), trial_id=trial.trial_id)[0] for trial in trials]
    job = SimpleNamespace(config=load(MINIATURE), folder=tmp_path)
    running = leg_module.Leg(job, leg_module.Course("rl", "train", 1), None, None, tmp_path, None)  # type: ignore[arg-type]

    def lost(count: int) -> list[str]:
        broken = [permuted(sample) if place < count else sample for place, sample in enumerate(samples)]
        return list(running._lost(3, SpooledBatch(tuple(trials), tuple(broken), (), Ledger(3))))

    assert lost(0) == []
    assert lost(1) == ["t0"]
    assert "does not learn from trial t0: checksum" in caplog.text
    with pytest.raises(DriftError, match=r"routing of 2 of 4 trials was changed .* allows 1; the first is trial t0"):
        lost(2)
