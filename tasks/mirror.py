"""What a running job has committed, shown to people: step metrics in MLflow, a progress artifact in Prefect.

Jobs know neither MLflow nor Prefect. They commit step records; the mirror reads those it has not seen and passes them
on. Being run again from the start, by a retried task or a later flow run, it changes nothing that is there. A server
that is away, because it is started again, costs the job nothing: what could not be shown is shown when it is back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from components.artifacts import ArtifactStore
from components.errors import ServiceError
from tasks import tracking

_SHOWN = {
    "rollout/reward_mean": "reward",
    "rollout/pass_rate": "pass rate",
    "rollout/turns_mean": "turns",
    "rollout/cancelled": "cancelled",
    "rollout/carried": "carried",
    "gap/engine_token_mean": "engine gap",
    "base/loss": "loss",
    "sft/loss": "loss",
}


@dataclass(frozen=True)
class Steps:
    """Which step records belong to a job."""

    prefix: str
    """Store prefix, `campaigns/<campaign>/<stage>/steps`."""
    first: int
    end: int | None
    """The first step that is not the job's; None when all are."""
    title: str

    def number(self, key: str) -> int | None:
        """The step a store key is the record of; None when it is not the record of one of these steps."""
        parts = key.split("/")
        if parts[-1] != "record.json" or not parts[-2].isdecimal():
            return None
        step = int(parts[-2])
        inside = step >= self.first and (self.end is None or step < self.end)
        return step if inside else None


class Mirror:
    """Follows the step records of one job."""

    def __init__(self, store: ArtifactStore, steps: Steps, run: Any) -> None:
        self._store = store
        self._steps = steps
        self._run = run
        self._seen: set[int] = set()
        self._started = time.monotonic()
        self._before: int | None = None
        self._artifact: UUID | None = None
        self._unshown: Mapping[str, Any] | None = None
        self._away = False

    def tick(self, log: Callable[[int, str], None]) -> None:
        """As `poll`, while the job goes on: a server that is away is logged once, and asked again by the next call."""
        try:
            self.poll()
            self._away = False
        except (ServiceError, httpx.HTTPError) as error:
            if not self._away:
                log(logging.WARNING, f"steps are not shown for the moment: {type(error).__name__}: {error}")
            self._away = True

    def poll(self) -> None:
        """Passes on what was committed since the last call.

        Raises:
            ServiceError: MLflow did not take it.
            httpx.HTTPError: Prefect did not.
        """
        keys = {self._steps.number(key): key for key in self._store.list(self._steps.prefix)}
        fresh = sorted(step for step in keys if step is not None and step not in self._seen)
        for step in fresh:
            record = self._store.get_json(keys[step])
            tracking.tracker().log_step(self._run, step, record["metrics"], record["timestamp_ms"])
            self._seen.add(step)
            self._unshown = record
        if self._before is None:
            self._before = self._done()
        if self._unshown is not None:
            self._show(self._unshown["metrics"], self._unshown["total"])
            self._unshown = None

    def _done(self) -> int:
        """Steps behind the job."""
        return max(self._seen, default=self._steps.first - 1) + 1 - self._steps.first

    def _show(self, metrics: Mapping[str, float | None], total: int) -> None:
        percent = 100.0 * self._done() / total
        text = self._sentence(metrics, total)
        if self._artifact is None:
            key = self._steps.title.lower().replace(" ", "-")
            self._artifact = cast(UUID, create_progress_artifact(percent, key=key, description=text))
        else:
            update_progress_artifact(self._artifact, percent, description=text)

    def _sentence(self, metrics: Mapping[str, float | None], total: int) -> str:
        done = self._done()
        figures = [f"{word} {metrics[name]:.4g}" for name, word in _SHOWN.items() if metrics.get(name) is not None]
        parts = [f"{self._steps.title}: step {done} of {total}", *figures]
        if (since := done - (self._before or 0)) and done < total:
            remaining = (time.monotonic() - self._started) / since * (total - done)
            parts.append(f"about {remaining / 60:.1f} min left")
        return ", ".join(parts)
