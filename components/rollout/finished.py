"""Trials that have ended, on disk before their step has: a killed leg pays for none of them again.

Invariant: a trial is there whole or not at all, with its streams, and is found again by its id, which is the same in
every process that tries the same work. Nothing is kept longer than it can be asked for.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.errors import StoreError
from components.records import Reward, Sample, Trial
from components.rollout.ledger import Ledger
from components.rollout.spool import load_batch, save_batch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A graded trial, and its streams with their routing. The trial's turns have none when it was read back."""

    trial: Trial
    samples: tuple[Sample, ...]


class FinishedTrials:
    """The folder of the trials that ended in the steps of a leg. One process uses it at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, step: int, trial: Trial, samples: Sequence[Sample], reward: Reward) -> None:
        """Keeps a trial.

        Raises:
            StoreError: it is there already, or cannot be written.
        """
        save_batch(self._folder / f"{step:06d}" / trial.trial_id, [trial], samples, [reward], Ledger(step))

    def __contains__(self, trial_id: object) -> bool:
        return self._find(str(trial_id)) is not None

    def get(self, trial_id: str) -> Finished | None:
        """A trial that was kept. One that cannot be read is told of and dropped: it runs again."""
        place = self._find(trial_id)
        if place is None:
            return None
        try:
            batch = load_batch(place)
        except StoreError as error:
            log.warning("a finished trial runs again: %s", error)
            self.drop(trial_id)
            return None
        (trial,) = batch.trials
        return Finished(trial, batch.samples)

    def drop(self, trial_id: str) -> None:
        """Forgets a trial that was kept."""
        if (place := self._find(trial_id)) is not None:
            shutil.rmtree(place)

    def forget_before(self, step: int, waiting: Container[str | None] = ()) -> None:
        """Drops what ended in earlier steps, but for trials that wait to be admitted: a step may have no place for one
        that ended before it began."""
        for place in self._folder.glob("[0-9]*"):
            if int(place.name) < step:
                for trial in place.iterdir():
                    if trial.name not in waiting:
                        shutil.rmtree(trial)
                if not any(place.iterdir()):
                    place.rmdir()

    def _find(self, trial_id: str) -> Path | None:
        return next(iter(sorted(self._folder.glob(f"[0-9]*/{trial_id}"))), None)
