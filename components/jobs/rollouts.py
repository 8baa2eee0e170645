"""The rollout side of a leg: a Ray actor that turns a weight version and the next tasks of the pool into a batch.

It lives in a process of its own, so that parsing, sockets and sandboxes never wait for the trainer's interpreter. The
actor dies with the job that owns it. Its sandboxes live in a process of their own again, which waits for the next
attempt at the leg, or for the leg after it.

Invariant: a batch folder is written whole before `generate` returns; every turn that its step drew is of `version`, and
no turn is in flight. Trials that the step carries wait here for the next. A trial that has ended is on disk before it
counts, and the actor's successor takes it from there; one that was alive when the actor died goes on in that successor
where its sandbox lives, and starts anew elsewhere. A trial whose record may not be trained on has faulted: it is in no
batch, and its task is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from components.config import CampaignConfig, RolloutConfig, validate
from components.errors import DriftError, RecordError
from components.joblog import Hearing, Said, about, begin, say
from components.jobs.actors import ROLLOUTS
from components.jobs.job import log
from components.jobs.world import Drawing, World, open_world
from components.learning.admission import Admitted, admit
from components.learning.batch import assemble, reward_of
from components.pool import Cursor, Pool, Task
from components.records import Sampling, Trial
from components.rollout import (
    Attempt,
    Barrier,
    FinishedTrials,
    Interrupted,
    Journals,
    Rollout,
    Unfinished,
    rollout_metrics,
    save_batch,
    trial_tokens,
)
from components.sandbox.host import Hosts
from components.tito import stitch

SPARE_SHARE = 0.5
"""Share of a batch that is drawn from the pool beyond what is launched, to replace tasks that keep faulting."""
CLOSE_S = 8.0
"""A job that is told to stop has `cluster.STOP_GRACE_S` for all that it leaves behind."""


class Rollouts:
    """Generates the batches of one leg, one after another. Made an actor by `RolloutSide`.

    Args:
        state: the job's scratch folder.
        boxes: scratch that the stage's legs share: where the sandboxes are.
        finished: the same for what the trials did.
    """

    def __init__(
        self,
        campaign: str,
        config: Mapping[str, Any],
        pool: str,
        checkpoint: str,
        seed: int,
        state: str,
        boxes: str,
        finished: str,
    ) -> None:
        self._campaign = campaign
        self._config: CampaignConfig = validate(dict(config), "config of the leg")
        self._pool = Pool(Path(pool))
        self._tasks: dict[str, Task] = {}
        self._checkpoint = Path(checkpoint)
        self._seed = seed
        self._state, self._boxes = Path(state), Path(boxes)
        self._stack = AsyncExitStack()  # for the life of the process, whose end also ends the sandboxes
        self._opened: tuple[Rollout[Task], World] | None = None
        self._finished = FinishedTrials(Path(finished))
        self._interrupted = Interrupted(Journals(Path(finished) / "alive"))
        self._sorted = False
        """Whether what earlier processes left has been looked through."""
        self._streams: dict[str, Admitted] = {}
        self._step = 0
        self._reused = 0
        """Trials of the step that an earlier attempt had finished."""
        self._heard = Hearing()
        """What was logged here and not handed on yet."""

    def speak(self) -> None:
        """From now on what this process logs is kept for the job's log, as well as in a file of Ray's."""
        begin(sys.stderr)
        logging.getLogger().addHandler(self._heard)

    async def open(self) -> None:
        """Starts the samplers and opens the sandboxes.

        Raises:
            CheckpointError, ServiceError: see `open_world`.
        """
        await self._open()

    async def close(self) -> None:
        """Ends the samplers, and what sandboxes there are."""
        await self._stack.aclose()

    async def leave(self) -> None:
        """Ends the samplers alone. The boxes wait for the next leg, and the trials at the barrier go on there as after
        the kill of a job: this process must end without another word to either."""
        _, world = await self._open()
        await world.fleet.close()

    async def hold(self) -> tuple[dict[int, str], list[Said]]:
        """The samplers that a publication is for, by their places, held until `release`; and what was said since."""
        _, world = await self._open()
        return await world.fleet.hold(), self._heard.take()

    async def release(self, version: int, weights: str | None, lost: Mapping[int, str]) -> list[Said]:
        """Ends a publication (see `Fleet.release`). Returns what was said."""
        _, world = await self._open()
        await world.fleet.release(version, None if weights is None else Path(weights), lost)
        return self._heard.take()

    async def generate(
        self,
        step: int,
        version: int,
        cursor: Mapping[str, int],
        unfinished: Sequence[Mapping[str, Any]],
        folder: str,
    ) -> dict[str, Any]:
        """Runs the rollouts of `step` and commits them as `folder`.

        Args:
            unfinished: records of what the step before passed over.

        Returns:
            {"metrics": series of the step, "cursor": where the data cursor stands afterwards, "unfinished": records of
            what this step passed over, "said": what was logged here}
        """
        rollout, world = await self._open()
        self._step, self._reused = step, 0
        owed = [Unfinished(**record) for record in unfinished]
        self._finished.forget_before(step - 1, {trial.trial_id for trial in owed})
        gone_on = len(self._interrupted.gone_on)
        await self._sort_interrupted(world, version)
        at = Cursor(**cursor)
        wanted = math.ceil((rollout.plan.limit + SPARE_SHARE * rollout.plan.batch) / rollout.plan.group)
        refs, _ = self._pool.draw(at, min(wanted, len(self._pool)))
        tasks = [self._load(ref.task_id) for ref in refs]
        with about(step=step):
            result = await rollout.step(step, version, tasks, [(self._load(trial.task_id), trial) for trial in owed])
            counts = {str(outcome): count for outcome, count in result.ledger.counts().items() if count}
            log.info("trials %s", ", ".join(f"{outcome} {count}" for outcome, count in counts.items()))
        await self._discard(world, self._interrupted.give_up())
        batch = assemble(
            result.trials,
            [self._streams.pop(trial.trial_id) for trial in result.trials],
            self._config.reward,
            num_experts=self._config.model.num_experts,
        )
        waiting = {trial.trial_id for trial in result.unfinished}
        self._streams = {name: streams for name, streams in self._streams.items() if name in waiting}
        metrics = rollout_metrics(result.trials, batch.trial_rewards, result.ledger, seconds=result.seconds)
        metrics["rollout/reused"] = float(self._reused)
        metrics["rollout/reattached"] = float(len(self._interrupted.gone_on) - gone_on)
        metrics |= {f"sandbox/{name}": count for name, count in world.backend.counts.items()}
        save_batch(Path(folder), result.trials, batch.samples, batch.trial_rewards, result.ledger)
        _, after = self._pool.draw(at, min(result.consumed, len(self._pool)))
        return {
            "metrics": metrics | batch.metrics | world.fleet.metrics(),
            "cursor": asdict(after),
            "unfinished": [trial.record() for trial in result.unfinished],
            "said": self._heard.take(),
        }

    async def _open(self) -> tuple[Rollout[Task], World]:
        if self._opened is None:
            config, barrier = self._config, Barrier()
            drawing = Drawing(self._seed, routing=True, tell=partial(log.warning, "%s"))
            world = await self._stack.enter_async_context(
                open_world(config, self._checkpoint, self._state, drawing, boxes=self._boxes)
            )
            rollout = Rollout(
                campaign=self._campaign,
                config=_within(config.rollout, len(_hosts(world).boxes)),
                run_trial=partial(self._run, world, barrier),
                barrier=barrier,
                group=config.ppo.group_size,
                finished=self._finished,
                interrupted=self._interrupted,
            )
            self._opened = rollout, world
        return self._opened

    async def _sort_interrupted(self, world: World, version: int) -> None:
        """Once: which trials of the process before go on, and the end of the boxes of those that do not."""
        if self._sorted:
            return
        self._sorted = True
        await self._discard(world, self._interrupted.find(_hosts(world).held, version))

    async def _discard(self, world: World, boxes: Collection[str]) -> None:
        """Ends boxes that nobody goes on with."""
        hosts = _hosts(world)
        ends = [hosts.discard(box) for box in boxes]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.warning("a box that was left did not end: %s", outcome)

    async def _run(self, world: World, barrier: Barrier, attempt: Attempt[Task]) -> Trial:
        """A trial from disk, where an attempt before this one has finished it, or run, from where that one was killed.

        Raises:
            DriftError, RecordError: what was recorded of it may not be trained on.
        """
        if (known := self._known(world, attempt)) is not None:
            return known
        sampling = Sampling(temperature=self._config.rollout.temperature)
        past = self._interrupted.open(attempt.trial_id, attempt.attempt, attempt.time)
        try:
            trial = await world.run(attempt, sampling, capture=True, barrier=barrier, past=past)
            await self._keep(world, trial)
        finally:
            past.close()
            self._interrupted.ended(attempt.trial_id)
        return trial

    async def _keep(self, world: World, trial: Trial) -> None:
        """Puts a trial that has a verdict on disk.

        Raises:
            DriftError, RecordError: what was recorded of it may not be trained on.
        """
        if trial.fault is None:
            chunks = stitch(trial.turns, world.tokenizer, trial_id=trial.trial_id)
            streams = admit(trial, chunks, world.tokenizer, self._config.model)
            reward = reward_of(trial, self._config.reward)
            await asyncio.to_thread(self._finished.put, self._step, trial, streams.samples, reward)
            self._streams[trial.trial_id] = streams

    def _known(self, world: World, attempt: Attempt[Task]) -> Trial | None:
        """A trial that an earlier attempt had finished. What has been damaged since is told of, and runs again."""
        if (finished := self._finished.get(attempt.trial_id)) is None:
            return None
        trial = finished.trial
        try:
            self._streams[trial.trial_id] = admit(trial, finished.samples, world.tokenizer, self._config.model)
        except (DriftError, RecordError) as error:
            log.warning("a finished trial runs again: %s", error)
            self._finished.drop(trial.trial_id)
            return None
        attempt.progress.turns, attempt.progress.tokens = len(trial.turns), trial_tokens(trial)
        self._reused += 1
        return trial

    def _load(self, task_id: str) -> Task:
        if task_id not in self._tasks:
            self._tasks[task_id] = self._pool.load(task_id)
        return self._tasks[task_id]


def _within(config: RolloutConfig, nodes: int) -> RolloutConfig:
    """As many trials at once as the nodes have places: one that waits for a place would spend its time."""
    if config.per_node is None:
        return config
    return config.model_copy(update={"concurrency": min(config.concurrency, config.per_node * nodes)})


def _hosts(world: World) -> Hosts:
    """Where the boxes of a leg are."""
    assert world.hosts is not None, "the world of a leg is opened with hosts"
    return world.hosts


class RolloutSide:
    """The actor, as the leg sees it. What the actor logs is in the job's log."""

    def __init__(self, *arguments: Any) -> None:
        """A `Rollouts` in a process of its own; `arguments` are its. It is on this node, whose folders both use: Ray
        puts an actor that asks for nothing on any."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._actor = ray.remote(**ROLLOUTS, scheduling_strategy=here)(Rollouts).remote(*arguments)
        self._actor.speak.remote()

    def open(self) -> None:
        """See `Rollouts.open`."""
        _get(self._actor.open.remote())

    def begin(self, *arguments: Any) -> ray.ObjectRef:
        """Asks for a batch; `arguments` are those of `Rollouts.generate`."""
        return self._actor.generate.remote(*arguments)

    def collect(self, pending: ray.ObjectRef) -> dict[str, Any]:
        """Waits for the batch."""
        produced = dict(_get(pending))
        say(log, produced.pop("said"))
        return produced

    def hold(self) -> dict[int, str]:
        """See `Rollouts.hold`."""
        held, said = _get(self._actor.hold.remote())
        say(log, said)
        return dict(held)

    def release(self, version: int, weights: Path | None, lost: Mapping[int, str]) -> None:
        """See `Rollouts.release`."""
        say(log, _get(self._actor.release.remote(version, None if weights is None else str(weights), dict(lost))))

    def close(self) -> None:
        """Ends the actor, in order if it manages to in time: what it started ends with it in any case."""
        self._end(self._actor.close.remote())

    def leave(self) -> None:
        """Ends the actor, but not its boxes: the next leg goes on with the trials that wait in them."""
        self._end(self._actor.leave.remote())

    def _end(self, ending: ray.ObjectRef) -> None:
        ray.wait([ending], timeout=CLOSE_S)
        ray.kill(self._actor)


def _get(reference: ray.ObjectRef) -> Any:
    """What an actor returns. Its own error is raised, not Ray's wrapper."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


__all__ = ["RolloutSide", "Rollouts"]
