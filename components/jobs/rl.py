"""One leg of RL: `leg_steps` updates, generation one step ahead, a commit after every step (paper Algorithm 3).

Update t consumes the batch that was generated while update t-1 ran, under the weights from before it: staleness is
exactly 1 (0 for the very first batch). At the barrier the trainer's new weights are published and the batch of t+1
begins.

Invariant: a step is committed when its record is in the store; the record is written after the trainer's state and the
next batch. A leg that is killed continues from its last record: no step is learned twice, and a batch that was in the
store is never generated again.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from components.errors import InfraFault, ServiceError
from components.jobs.checkpoints import publish_checkpoint
from components.jobs.job import Job, log, main
from components.jobs.rollouts import collect, start_actor
from components.jobs.world import OpenSampler, client, open_sampler
from components.learning import learn
from components.planner import require
from components.pool import Cursor
from components.publish import Publication, open_publisher
from components.rollout import SpooledBatch, load_batch
from components.trainer import Trainer
from components.trainer.megatron import open_trainer

STAGE = "rl"
KEPT_STATES = 2
"""Trainer states that are kept: the last, and the one before, should the last be found damaged."""


class Leg:
    """The loop of one leg."""

    def __init__(self, job: Job, trainer: Trainer, actor: Any, checkpoint: Path, sampler: OpenSampler) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._trainer = trainer
        self._actor = actor
        self._sampler = sampler
        self._weights = job.folder / "weights"
        self._publisher = open_publisher(job.config.publish, self._weights)
        self._restarts = 0
        self._total = job.config.rl.legs * job.config.rl.leg_steps

    def run(self, first: int, last: int) -> dict[str, float]:
        """Steps `first` up to, not including, `last`. Returns the last step's metrics."""
        metrics: dict[str, float] = {}
        self._publish(first)
        if not self._rollout(first):
            self._finish(first, self._begin(first, version=max(first - 1, 0)))
        for step in range(first, last):
            metrics = self._step(step)
        return metrics

    def _step(self, step: int) -> dict[str, float]:
        started = time.monotonic()
        ahead = step + 1
        pending = None
        if ahead < self._total and not self._rollout(ahead):
            pending = self._begin(ahead, version=step)
        metrics = self._learn(step)
        learned = time.monotonic()
        if pending is not None:
            self._finish(ahead, pending)
        waited = time.monotonic()
        lost = self._publish(ahead)
        published = time.monotonic()
        metrics |= {
            "time/train": learned - started,
            "time/barrier_wait": waited - learned,
            "time/publish": published - waited,
            "time/step": published - started,
            "publish/lost": float(lost),
        }
        self._commit(step, metrics)
        return metrics

    def _learn(self, step: int) -> dict[str, float]:
        """Critic, then actor, on the batch of `step`; the metrics of its rollouts and of the update."""
        job = self._job
        batch = load_batch(job.store.tree(job.key(STAGE, "batches", f"{step:06d}")))
        rollout = self._rollout(step)
        assert rollout is not None
        result = learn(
            self._trainer,
            batch.samples,
            _sample_rewards(batch),
            job.config.ppo,
            temperature=job.config.rollout.temperature,
            actor_moves=step >= job.config.ppo.critic_only_steps,
        )
        metrics = dict(rollout["metrics"]) | result.metrics
        metrics["time/generate"] = metrics["rollout/seconds"]
        return metrics

    def _begin(self, step: int, *, version: int) -> ray.ObjectRef:
        """Asks for the batch of `step`, whose turns must all be of `version`."""
        cursor = Cursor(self._job.config.seed)
        if previous := self._rollout(step - 1):
            cursor = Cursor(**previous["cursor"])
        folder = self._job.folder / "batches" / f"{step:06d}"
        at = {"seed": cursor.seed, "position": cursor.position}
        return self._actor.generate.remote(step, version, at, str(folder))

    def _finish(self, step: int, pending: ray.ObjectRef) -> None:
        """Waits for the batch of `step` and puts it into the store; its description last."""
        job = self._job
        produced = collect(pending)
        job.store.put_tree(job.key(STAGE, "batches", f"{step:06d}"), job.folder / "batches" / f"{step:06d}")
        job.store.put_json(job.key(STAGE, "rollouts", f"{step:06d}"), produced)

    def _rollout(self, step: int) -> dict[str, Any] | None:
        """The description of the batch of `step`; None while it is not in the store."""
        key = self._job.key(STAGE, "rollouts", f"{step:06d}")
        if step < 0 or not self._job.store.exists(key):
            return None
        return dict(self._job.store.get_json(key))

    def _publish(self, version: int) -> int:
        """Brings the trainer's weights to the sampler. One that is lost on the way is started anew with them.

        Returns:
            How many were lost.
        """
        publication = asyncio.run(self._exchange(version))
        for fault in publication.lost.values():
            self._reclaim(version, fault)
        return len(publication.lost)

    async def _exchange(self, version: int) -> Publication:
        sampler = client(self._job.config, self._checkpoint, self._sampler.url)
        try:
            return await self._publisher.publish([sampler], self._trainer, version)
        finally:
            await sampler.close()

    def _reclaim(self, version: int, fault: InfraFault) -> None:
        """Starts a lost sampler anew, at its old URL.

        Raises:
            ServiceError: it runs by itself, its restarts are used up, or it does not start.
        """
        server, allowed = self._sampler.server, self._job.config.sampler.max_restarts
        lost = f"the sampler at {self._sampler.url} was lost while version {version} was published ({fault})"
        if server is None:
            raise ServiceError(f"{lost}; it was not started from here: start it again, then resume the campaign")
        if self._restarts == allowed:
            raise ServiceError(f"{lost}, and its {allowed} restarts (sampler.max_restarts) are used up")
        self._restarts += 1
        log.warning("%s: restart %d of %d", lost, self._restarts, allowed)
        self._trainer.save_hf(self._weights)
        server.restart(self._weights, version)

    def _commit(self, step: int, metrics: Mapping[str, float]) -> None:
        job = self._job
        state = job.folder / "state"
        self._trainer.save(state)
        job.store.put_tree(_state_key(job, step), state)
        job.commit(STAGE, step, metrics, leg=job.index)
        if step >= KEPT_STATES:
            job.store.delete(_state_key(job, step - KEPT_STATES))
        log.info(
            "step %d: reward %.3f, pass rate %.3f, turns %.2f, cancelled %d, %.1f s",
            step,
            metrics["rollout/reward_mean"],
            metrics["rollout/pass_rate"],
            metrics["rollout/turns_mean"],
            metrics["rollout/cancelled"],
            metrics["time/step"],
        )


def leg(job: Job) -> dict[str, Any]:
    """The stage. Result: {"checkpoint", "state", "step", "metrics", "launched", "cancelled"}."""
    require(job.config)
    shutil.rmtree(job.folder / "batches", ignore_errors=True)
    first = int(job.inputs["first_step"])
    last = first + job.config.rl.leg_steps
    done = [step for step in job.committed(STAGE) if first <= step < last]
    position = done[-1] + 1 if done else first
    if done:
        log.info("continuing at step %d: steps %d to %d are committed", position, done[0], done[-1])
    checkpoint = job.store.tree(job.inputs["checkpoint"])
    state = _state_key(job, position - 1) if done else job.inputs["state"]
    with _runtime(job, checkpoint) as (sampler, actor), _trainer(job, checkpoint, state) as trainer:
        if position < last:
            Leg(job, trainer, actor, checkpoint, sampler).run(position, last)
        key = job.key(STAGE, "legs", job.index, "checkpoint")
        publish_checkpoint(job, trainer, key, tokenizer_from=checkpoint)
    return {"checkpoint": key, "state": _state_key(job, last - 1), "step": last, **_totals(job, first, last)}


@contextmanager
def _runtime(job: Job, checkpoint: Path) -> Iterator[tuple[OpenSampler, Any]]:
    """A sampler and the rollout actor, for the time of the leg."""
    seed = job.config.seed * 1_000 + job.index
    with open_sampler(job.config, checkpoint, seed=seed, routing=True, log=job.folder / "sampler.log") as sampler:
        ray.init(address="auto", logging_level="warning")
        config = job.config.model_dump(mode="json")
        train = str(job.store.tree(job.inputs["pool"]) / "train")
        actor = start_actor(job.campaign, config, train, str(checkpoint), sampler.url, str(job.folder))
        try:
            yield sampler, actor
        finally:
            ray.kill(actor)


@contextmanager
def _trainer(job: Job, checkpoint: Path, state: str | None) -> Iterator[Trainer]:
    """Actor and critic: from the state of the step before, or both from the checkpoint that RL starts from."""
    config = job.config
    with open_trainer(
        config.model, config.trainer, actor=config.ppo.actor, critic=config.ppo.critic, seed=None, logs=job.folder
    ) as trainer:
        if state is not None:
            trainer.load(job.store.tree(state))
        else:
            trainer.load_hf(checkpoint, what="actor")
            trainer.load_hf(checkpoint, what="critic_from_actor")
            trainer.rotate()
        yield trainer


def _sample_rewards(batch: SpooledBatch) -> list[float]:
    """One reward a sample: that of its trial."""
    rewards = {trial.trial_id: reward.value for trial, reward in zip(batch.trials, batch.rewards, strict=True)}
    return [rewards[sample.trial_id] for sample in batch.samples]


def _state_key(job: Job, step: int) -> str:
    return job.key(STAGE, "steps", f"{step:06d}", "state")


def _totals(job: Job, first: int, last: int) -> dict[str, Any]:
    """Launched and cancelled over the leg's records, and the last record's metrics."""
    records = [record["metrics"] for record in job.records(STAGE) if first <= record["step"] < last]
    return {
        "metrics": records[-1],
        "launched": int(sum(metrics["rollout/launched"] for metrics in records)),
        "cancelled": int(sum(metrics["rollout/cancelled"] for metrics in records)),
    }


if __name__ == "__main__":
    main(leg)
