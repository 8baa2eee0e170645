"""Faults that the jobs of other projects had (the public report is named)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.job_submission import JobStatus

from components import cluster
from components.artifacts import LocalStore
from components.cluster import Cluster, JobSpec
from components.config import PoolConfig, load
from components.errors import Failure, JobFailed, ServiceError
from components.jobs import rollouts
from components.jobs.rollouts import Rollouts
from components.jobs.world import OpenSampler
from components.pool import Cursor, Pool, Split, Task, generate
from components.pool.directory import write_task
from components.pool.index import index_folder
from components.records import Trial
from components.rollout import Attempt, load_batch
from components.sampler import ModelGeometry, SGLangClient, launch_sampler
from tests.conformance.publisher_suite import draw
from tests.harness.parts import ByteTokenizer
from tests.jobs.test_reclaim import CONTEXT, MINIATURE, leg
from tests.rollout.parts import graded
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
        self.folder = folder
        self.pool = pool
        self.record: dict[str, Any] = {"cursor": asdict(Cursor(1)), "unfinished": []}
        monkeypatch.setattr(rollouts, "open_world", self.world)

    @asynccontextmanager
    async def world(self, *_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(tokenizer=ByteTokenizer(), run=self.run)

    async def run(self, attempt: Attempt[Task], *_: object, **__: object) -> Trial:
        self.served.append(attempt.task.ref.task_id)
        if attempt.task.ref.task_id in self.endless:
            await asyncio.Event().wait()
        return graded(attempt.trial_id, attempt.task.ref)

    async def process(self, step: int) -> list[str]:
        """A process that runs one step from the record before it, commits its own, and is killed. What it served."""
        self.served.clear()
        config = load(MINIATURE, CARRYING).model_dump(mode="json")
        folders = str(self.pool.folder), "checkpoint", "url", str(self.folder / "state"), str(self.folder / "finished")
        actor, before = Rollouts("c", config, *folders), json.loads(json.dumps(self.record))
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


async def version_of(url: str, checkpoint: Path) -> int:
    client = SGLangClient(url, model=ModelGeometry.read(checkpoint, CONTEXT))
    try:
        return (await draw(client)).weight_version
    finally:
        await client.close()


@pytest.mark.parametrize("method", [pytest.param("disk", marks=pytest.mark.nightly), "collective"])
def test_a_killed_sampler_is_started_anew_until_its_restarts_are_used_up(
    tmp_path: Path,
    model_folder: Path,  # noqa: F811
    other_folder: Path,  # noqa: F811
    method: str,
) -> None:
    # NeMo-RL #3613: an engine that kept dying was started again for ever; the run stood still and called that healthy.
    overrides = [f"publish.method={method}", "publish.timeout_s=30", "sampler.max_restarts=1", "sampler.slots=2"]
    config = load(MINIATURE, overrides)
    with launch_sampler(config.sampler, model_folder, seed=0, routing=True, log_path=tmp_path / "log") as server:
        running = leg(tmp_path, config, model_folder, other_folder, OpenSampler(server.url, server))
        assert running._publish(1) == 0
        os.kill(server.pid, signal.SIGKILL)
        assert running._publish(2) == 1
        assert asyncio.run(version_of(server.url, model_folder)) == 2
        assert running._publish(3) == 0
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServiceError, match=r"version 4 was published.*1 restarts .*are used up"):
            running._publish(4)


class EndedWell:
    """Ray, in which every job that it knows has SUCCEEDED."""

    def __init__(self, *_: object, **__: object) -> None:
        self.submitted: list[str] = []

    def submit_job(self, *, submission_id: str, **_: object) -> None:
        self.submitted.append(submission_id)

    def get_job_status(self, submission_id: str) -> JobStatus:
        if submission_id not in self.submitted:
            raise RuntimeError(f"404: {submission_id} does not exist")
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
