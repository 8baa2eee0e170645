"""Commits of a stage's steps, written behind the work that goes on, and the state from which a stage continues.

A commit is the trainer's state and, last, the step's record. The state is copied when the step ends; a thread writes
it while the next step runs.

Invariants: a record appears when the state of its step is whole and on disk, and steps are committed in order. At most
one commit is under way, so one state is held beside the trainer's own. What goes wrong in the thread is raised by the
next commit or at the end, and nothing is committed after it. A state that is damaged is never loaded: the newest whole
one is, the steps behind it are taken again, and the records and batches that they left the first time stay. A state
that was committed under another configuration is not continued from: what a step computes would change unseen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from components.config.decisive import decisive, decisive_digest, differences
from components.errors import CheckpointError, DamagedError, StoreError
from components.joblog import about
from components.jobs.job import Job, log
from components.naming import refused_key, step_key
from components.trainer import State, Trainer

OF_THE_RUN = ("time/", "publish/", "fleet/", "resume/", "sandbox/")
"""Prefixes of figures that tell how a step went rather than what it computed."""


CONFIG = "config.json"
"""File of a state: the keys that an exact continuation depends on, and their digest."""


def state_key(job: Job, stage: str, step: int) -> str:
    """Where the trainer's state after `step` lies."""
    return step_key(job.campaign, stage, step, "state")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stage continues.

    Attributes:
        step: the first step to take.
        state: folder with the trainer's state after the step before; None at the beginning of the stage.
    """

    step: int
    state: Path | None


def resume(job: Job, stage: str, last: int, *, begins: bool) -> Position:
    """The newest whole state of `stage` before step `last`. Those that had to be passed over are logged and noted.

    Args:
        job, stage: whose states.
        last: the first step that is not the job's.
        begins: whether the job can also begin at step 0, without a state.

    Raises:
        CheckpointError: no kept state is whole, and the job cannot begin without one; or the newest whole one was
            committed under another configuration. It names the keys.
    """
    present = set(job.store.list(job.key(stage, "steps")))
    refused: dict[int, str] = {}
    position = Position(0, None)
    for step in [step for step in reversed(job.committed(stage)) if step < last]:
        key = state_key(job, stage, step)
        if key not in present:
            refused[step] = f"{key} is not in the store"
            continue
        try:
            position = Position(step + 1, job.store.tree(key))
            _check_config(job, stage, key, job.store.tree(key))
            break
        except DamagedError as error:
            refused[step] = str(error)
    told = dict(list(refused.items())[: job.config.checkpoints.keep_last])
    if position.state is None and not begins:
        causes = "; ".join(told.values()) or "no step is committed"
        raise CheckpointError(
            f"{stage} cannot continue before step {last}, no state is whole ({causes}): start it anew"
        )
    for step, cause in told.items():
        log.warning("the state after step %d is refused (%s): continuing at step %d", step, cause, position.step)
        noted = {"step": step, "cause": cause, "continued_at": position.step, "index": job.index}
        job.store.put_json(refused_key(job.campaign, stage, step), noted)
    return position


def refused_states(job: Job, stage: str) -> list[dict[str, Any]]:
    """What this job, in whichever attempt, could not continue from: step, cause, and the step it continued at."""
    noted = [job.store.get_json(key) for key in job.store.list(job.key(stage, "refused"))]
    return [state for state in noted if state["index"] == job.index]


class Commits:
    """Commits the steps of one stage.

    Args:
        job, stage: whose steps.
        first: the first step that will be committed.
        total: how many steps the job makes; what progress is measured against.
        held: steps whose states are kept whatever their age.
        facts: what every record says beside its metrics.
    """

    def __init__(
        self,
        job: Job,
        stage: str,
        *,
        first: int,
        total: int,
        held: Callable[[], Collection[int]] = tuple,
        **facts: Any,
    ) -> None:
        self._job, self._stage = job, stage
        self._total, self._held, self._facts = total, held, facts
        self._redone = 0
        self._pending: Future[None] | None = None
        # What a killed deletion left has no name in the store any more, so every step that may have a state is asked.
        for step in self._outdated(first - 1, job.committed(stage)):
            job.store.delete(state_key(job, stage, step))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="commit")

    def commit(self, step: int, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Copies the trainer's state and returns; the step is committed soon after.

        The record's `time/save` is how long this took: the wait for the commit before, and the copy.

        Raises:
            StoreError: the commit before could not be written.
        """
        started = time.monotonic()
        self.wait()
        state = _stamped(trainer.state(), decisive(self._job.config, self._stage))
        told = {**metrics, "time/save": time.monotonic() - started}
        self._pending = self._writer.submit(self._about, step, state, told)

    def wait(self) -> None:
        """Returns when every step is committed.

        Raises:
            StoreError: one could not be written.
        """
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def __enter__(self) -> Commits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A commit that is under way is finished, whatever ended the block."""
        self._writer.shutdown()
        if kind is None:
            self.wait()
        elif self._pending is not None and (failure := self._pending.exception()) not in (None, error):
            log.error("the last commit was lost: %s", failure)

    def _about(self, step: int, state: State, metrics: dict[str, float]) -> None:
        with about(step=step):
            self._write(step, state, metrics)

    def _write(self, step: int, state: State, metrics: dict[str, float]) -> None:
        job, stage = self._job, self._stage
        folder = job.folder / "state"
        try:
            state.write(folder)
        except OSError as error:
            raise StoreError(f"step {step} is not committed: {folder}: {error.strerror or error}") from error
        job.store.put_tree(state_key(job, stage, step), folder)
        if step in job.committed(stage):
            self._redone += 1
            self._compare(step, metrics)
        else:
            if self._redone:
                metrics["resume/redone_steps"] = float(self._redone)
                self._redone = 0
            job.commit(stage, step, metrics, total=self._total, **self._facts)
        prefix = job.key(stage, "steps")
        states = [int(key.split("/")[-2]) for key in job.store.list(prefix) if key.endswith("/state")]
        for old in self._outdated(step, states):
            job.store.delete(state_key(job, stage, old))

    def _outdated(self, step: int, states: Collection[int]) -> list[int]:
        """Of these states those that need not be kept once `step` is committed.

        Later ones were found damaged and will be replaced.
        """
        last = sorted(state for state in states if state <= step)[: -self._job.config.checkpoints.keep_last]
        held = self._held() if last else ()
        return [state for state in last if state not in held]

    def _compare(self, step: int, metrics: Mapping[str, float]) -> None:
        """Says whether a step that was taken again computed what its record says. The record stays."""
        record = self._job.record(self._stage, step)["metrics"]
        names = sorted(name for name in record.keys() | metrics.keys() if not name.startswith(OF_THE_RUN))
        different = [name for name in names if not _same(record.get(name), metrics.get(name))]
        if different:
            figures = ", ".join(f"{name} {record.get(name)} -> {metrics.get(name)}" for name in different)
            log.warning("step %d was taken again and differs from its record, which stays: %s", step, figures)
        else:
            log.info("step %d was taken again: its figures are those of its record", step)


def _stamped(state: State, keys: Mapping[str, Any]) -> State:
    """A state that says under which configuration it came about."""
    text = json.dumps({"digest": decisive_digest(keys), "keys": keys}, indent=1)
    return State({**state.files, CONFIG: np.frombuffer(text.encode(), np.uint8)})


def _check_config(job: Job, stage: str, key: str, folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{key} does not say under which configuration it was committed: start {stage} anew")
    committed, keys = json.loads((folder / CONFIG).read_text()), decisive(job.config, stage)
    if committed["digest"] != decisive_digest(keys):
        told = "; ".join(differences(committed["keys"], keys))
        raise CheckpointError(
            f"{key} was committed under another configuration ({told}): put these keys back, or start {stage} anew "
            "under another name"
        )


def _same(recorded: float | None, computed: float | None) -> bool:
    """Bit for bit, but that what is undefined (NaN) is as undefined the second time."""
    return recorded == computed or (recorded != recorded and computed != computed)
