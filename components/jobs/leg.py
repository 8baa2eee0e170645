"""The loop of RL steps: generation one step ahead, a commit after every step (paper Algorithm 3).

Update t consumes the batch that was generated while update t-1 ran, under the weights from before it: staleness is
exactly 1 (0 for the very first batch), and more only for what a carried trial drew before. At the barrier the trainer's
new weights are published and the batch of t+1 begins.

Invariant: a step is committed when its record is in the store; the record is written after the trainer's state and the
next batch, while the step after it runs. A leg that is killed continues from the newest whole state: no step is learned
again that has one, and a batch that was in the store is never generated again.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from components.errors import DriftError, InfraFault
from components.joblog import about
from components.jobs.checkpoints import keep_tokenizer
from components.jobs.commits import Commits, refused_states, resume
from components.jobs.job import Job, log
from components.jobs.rollouts import RolloutSide
from components.jobs.world import client
from components.learning.admission import damaged
from components.learning.ppo_step import learn
from components.learning.staleness import kept, staleness_metrics
from components.naming import batch_key
from components.outcomes import REJECTIONS
from components.planner import require
from components.pool import Cursor
from components.publish import Publication, open_publisher
from components.rollout import SpooledBatch, dump_figures, load_batch, tolerated, trial_rows
from components.trainer import Trainer
from components.trainer.megatron import open_trainer


@dataclass(frozen=True, slots=True)
class Course:
    """The steps that a stage consists of, of which a leg is some.

    Attributes:
        stage: names the stage's keys in the store.
        tasks: which folder of the pool it draws from.
        total: its steps over all legs.
    """

    stage: str
    tasks: str
    total: int


class Leg:
    """The loop of one leg."""

    def __init__(
        self,
        job: Job,
        course: Course,
        trainer: Trainer,
        rollouts: RolloutSide,
        checkpoint: Path,
        commits: Commits,
    ) -> None:
        self._job = job
        self._course = course
        self._commits = commits
        self._checkpoint = checkpoint
        self._trainer = trainer
        self._rollouts = rollouts
        shared = job.config.publish.folder
        self._weights = job.folder / "weights" if shared is None else Path(shared) / job.campaign / course.stage
        self._publisher = open_publisher(job.config.publish, self._weights)

    def run(self, first: int, last: int) -> None:
        """Steps `first` up to, not including, `last`."""
        self._publish(first)
        if not self._rollout(first):
            self._finish(first, self._begin(first, version=max(first - 1, 0)))
        for step in range(first, last):
            with about(step=step):
                self._step(step)

    def _step(self, step: int) -> None:
        started = time.monotonic()
        ahead = step + 1
        pending = None
        if ahead < self._course.total and not self._rollout(ahead):
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
        self._commits.commit(step, self._trainer, metrics)
        if metrics["rollout/rejected"]:
            log.warning(
                "step %d: %d trials were rejected: their records are not of what was sampled (%s)",
                step,
                metrics["rollout/rejected"],
                ", ".join(f"{cause} {metrics[f'fault/{cause}']:.0f}" for cause in sorted(REJECTIONS)),
            )
        log.info(
            "step %d: reward %.3f, pass rate %.3f, turns %.2f, cancelled %d, %.1f s",
            step,
            metrics["rollout/reward_mean"],
            metrics["rollout/pass_rate"],
            metrics["rollout/turns_mean"],
            metrics["rollout/cancelled"],
            metrics["time/step"],
        )

    def _learn(self, step: int) -> dict[str, float]:
        """Critic, then actor, on the batch of `step`; the metrics of its rollouts and of the update."""
        config = self._job.config
        with self._job.store.borrowed(self._key("batches", step)) as folder:
            batch = load_batch(folder)
        rollout = self._rollout(step)
        assert rollout is not None
        rewards, groups = _of_samples(batch)
        oldest = config.rollout.versions
        lost = self._lost(step, batch)
        chosen = [index for index in kept(batch.samples, step, oldest) if batch.samples[index].trial_id not in lost]
        samples = [batch.samples[index] for index in chosen]
        result = learn(
            self._trainer,
            samples,
            [rewards[index] for index in chosen],
            config.ppo,
            groups=[groups[index] for index in chosen],
            version=step,
            temperature=config.rollout.temperature,
            actor_moves=config.ppo.critic is None or step >= config.ppo.critic.only_steps,
        )
        metrics = dict(rollout["metrics"]) | staleness_metrics(batch.samples, step, oldest) | result.metrics
        metrics["time/generate"] = metrics["rollout/seconds"]
        metrics["rollout/damaged"] = float(len(lost))
        store = self._job.store
        store.put_bytes(self._key("judged", step), dump_figures(samples, result.tokens))
        store.put_json(self._key("trials", step), trial_rows(batch.trials, batch.rewards, samples, result.tokens))
        store.put_json(self._key("ledger", step), batch.ledger.records())
        return metrics

    def _lost(self, step: int, batch: SpooledBatch) -> dict[str, InfraFault]:
        """Trials of a batch that are not learned from, since what is stored of them has changed.

        Raises:
            DriftError: they are more than `rollout.max_rejected_share` allows.
        """
        config = self._job.config
        lost = damaged(batch.samples, config.model)
        for name, fault in lost.items():
            log.warning("step %d does not learn from trial %s: %s", step, name, fault)
        allowed = tolerated(config.rollout.max_rejected_share, len(batch.trials))
        if len(lost) > allowed:
            name, fault = next(iter(lost.items()))
            raise DriftError(
                f"step {step}: the routing of {len(lost)} of {len(batch.trials)} trials was changed since it was "
                f"captured, rollout.max_rejected_share allows {allowed}; the first is trial {name}: {fault}"
            )
        return lost

    def _begin(self, step: int, *, version: int) -> ray.ObjectRef:
        """Asks for the batch of `step`, whose turns must all be of `version`."""
        previous = self._rollout(step - 1)
        at = asdict(Cursor(self._job.config.seed)) if previous is None else previous["cursor"]
        unfinished = [] if previous is None else previous["unfinished"]
        folder = self._job.folder / "batches" / f"{step:06d}"
        return self._rollouts.begin(step, version, at, unfinished, str(folder))

    def _finish(self, step: int, pending: ray.ObjectRef) -> None:
        """Waits for the batch of `step` and puts it into the store; its description last."""
        produced = self._rollouts.collect(pending)
        store = self._job.store
        store.put_tree(self._key("batches", step), self._job.folder / "batches" / f"{step:06d}")
        store.put_json(self._key("rollouts", step), produced)

    def _rollout(self, step: int) -> dict[str, Any] | None:
        """The description of the batch of `step`; None while it is not in the store."""
        key = self._key("rollouts", step)
        if step < 0 or not self._job.store.exists(key):
            return None
        return dict(self._job.store.get_json(key))

    def _publish(self, version: int) -> int:
        """Brings the trainer's weights to the samplers. Those that it does not reach are started anew with them.

        Returns:
            How many it did not reach.

        Raises:
            ServiceError: too few samplers are left.
        """
        urls = self._rollouts.hold()
        publication = asyncio.run(self._exchange(list(urls.values()), version))
        lost = {place: str(fault) for index, place in enumerate(urls) if (fault := publication.lost.get(index))}
        config = self._job.config
        missed = config.sampler.members - len(urls) + len(lost)
        written = config.publish.method == "disk"
        if missed and not written and (config.sampler.placement == "job" or config.publish.folder is not None):
            self._trainer.save_hf(self._weights)  # for those that are to be brought to this version alone
            written = True
        self._rollouts.release(version, self._weights if written else None, lost)
        return missed

    async def _exchange(self, urls: Sequence[str], version: int) -> Publication:
        samplers = [client(self._job.config, self._checkpoint, url) for url in urls]
        try:
            return await self._publisher.publish(samplers, self._trainer, version)
        finally:
            await asyncio.gather(*(sampler.close() for sampler in samplers))

    def _key(self, part: str, step: int) -> str:
        return batch_key(self._job.campaign, self._course.stage, step, part)


@contextmanager
def stepped(
    job: Job, course: Course, first: int, last: int, held: Callable[[], Collection[int]] = tuple
) -> Iterator[Trainer]:
    """Takes the steps from `first` up to, not including, `last`, and gives the trainer that has taken them.

    They are committed when the block has ended. Steps before `first` are taken again when the states after them are
    damaged. `held` are steps whose states are kept whatever their age.

    `job.inputs`: `pool`, `checkpoint` (what RL starts from), `state` (where the trainer's lies after the step before;
    None at the beginning) and `critic` (a warm one to begin with; None for a cold one).
    """
    require(job.config)
    shutil.rmtree(job.folder / "batches", ignore_errors=True)
    leaves = last < course.total and job.config.rollout.tail == "carry"
    position = resume(job, course.stage, last, begins=job.inputs["state"] is None)
    if position.step > first:
        log.info("continuing at step %d: steps %d to %d are committed", position.step, first, position.step - 1)
    checkpoint = job.store.tree(job.inputs["checkpoint"])
    keep_tokenizer(job, checkpoint)
    commits = Commits(job, course.stage, first=position.step, total=last - first, held=held, leg=job.index)
    with (
        commits,
        _rollouts(job, course, checkpoint, leaves=leaves) as rollouts,
        _trainer(job, checkpoint, position.state) as trainer,
    ):
        if position.step < last:
            Leg(job, course, trainer, rollouts, checkpoint, commits).run(position.step, last)
        yield trainer
    if not leaves:
        shutil.rmtree(_shared(job, course), ignore_errors=True)  # a host that ends late removes its part


def totals(job: Job, course: Course, first: int, last: int) -> dict[str, Any]:
    """Launched and cancelled over the records of these steps, the last one's metrics, and states that were refused."""
    records = [record["metrics"] for record in job.records(course.stage) if first <= record["step"] < last]
    return {
        "metrics": records[-1],
        "launched": int(sum(metrics["rollout/launched"] for metrics in records)),
        "cancelled": int(sum(metrics["rollout/cancelled"] for metrics in records)),
        "refused_states": refused_states(job, course.stage),
    }


@contextmanager
def _rollouts(job: Job, course: Course, checkpoint: Path, *, leaves: bool) -> Iterator[RolloutSide]:
    """The rollout actor with its samplers, for the time of the leg.

    One that `leaves` hands its boxes, and the trials that wait in them, to the next leg, unless it fails or is stopped.
    """
    ray.init(address="auto", logging_level="warning")
    rollouts = RolloutSide(
        job.campaign,
        job.config.model_dump(mode="json"),
        str(job.store.tree(job.inputs["pool"]) / course.tasks),
        str(checkpoint),
        job.config.sampler_seed(job.stage, job.index),
        str(job.folder),
        str(_shared(job, course)),
        str(_shared(job, course) / "finished" / job.lineage(course.stage)),
    )
    end = rollouts.close
    try:
        rollouts.open()
        yield rollouts
        if leaves:
            end = rollouts.leave
    finally:
        end()


def _shared(job: Job, course: Course) -> Path:
    """Scratch of the stage: what its legs hand to each other, and a killed one to its next attempt. Removed with the
    last."""
    return job.folder.with_name(course.stage)


@contextmanager
def _trainer(job: Job, checkpoint: Path, state: Path | None) -> Iterator[Trainer]:
    """Actor and critic: from the state of the step before, or from the checkpoint that RL starts from.

    A warm critic brings its weights and nothing else: its optimizer and its schedule begin anew, as the actor's do.
    """
    config = job.config
    with open_trainer(
        config.model,
        config.trainer,
        actor=config.ppo.actor,
        critic=config.ppo.critic,
        seed=None,
        snapshots=config.rollout.versions,
        logs=job.folder,
    ) as trainer:
        if state is not None:
            trainer.load(state)
        else:
            trainer.load_hf(checkpoint, what="actor")
            if config.ppo.critic is not None:
                warm = job.inputs["critic"]
                trainer.load_hf(
                    checkpoint if warm is None else job.store.tree(warm),
                    what="critic_from_actor" if warm is None else "critic",
                )
            trainer.rotate()
        yield trainer


def _of_samples(batch: SpooledBatch) -> tuple[list[float], list[str]]:
    """One reward and one group a sample: its trial's reward, and the task of its trial."""
    trials = {
        trial.trial_id: (reward.value, trial.task.task_id)
        for trial, reward in zip(batch.trials, batch.rewards, strict=True)
    }
    found = [trials[sample.trial_id] for sample in batch.samples]
    return [reward for reward, _ in found], [group for _, group in found]
