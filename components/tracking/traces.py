"""Trajectories as MLflow traces, one span a turn, after the fact.

A trajectory is logged once: the trial id is a tag of its trace. At scale only a sample of trajectories is logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlflow
from mlflow.entities import SpanType

from components.tracking.tracker import Run, Tracker

_TRIAL = "longshell.trial_id"


@dataclass(frozen=True)
class TurnView:
    """What a person wants to see of one turn. Where times were not recorded, the trace has the time of its logging."""

    screen: str
    keystrokes: str
    prompt_tokens: int
    sampled_tokens: int
    logprob_mean: float | None
    started_ms: int | None = None
    ended_ms: int | None = None


@dataclass(frozen=True)
class Trajectory:
    """What a person wants to see of one trial."""

    trial_id: str
    task_id: str
    instruction: str
    stop: str
    reward: float | None
    passed: int
    total: int
    turns: Sequence[TurnView]


def log_trajectory(tracker: Tracker, run: Run, trajectory: Trajectory, step: int) -> bool:
    """Logs a trajectory unless it was logged before; says whether it was now."""
    if not trajectory.turns or _is_logged(tracker, run, trajectory.trial_id):
        return False
    root = mlflow.start_span_no_context(
        name=trajectory.task_id,
        span_type=SpanType.AGENT,
        inputs={"instruction": trajectory.instruction},
        tags={_TRIAL: trajectory.trial_id, "longshell.step": str(step), "longshell.stop": trajectory.stop},
        metadata={"mlflow.sourceRun": run.run_id},
        experiment_id=run.experiment_id,
        start_time_ns=_ns(trajectory.turns[0].started_ms),
    )
    for number, turn in enumerate(trajectory.turns):
        span = mlflow.start_span_no_context(
            name=f"turn {number}",
            span_type=SpanType.LLM,
            parent_span=root,
            inputs={"screen": turn.screen},
            attributes=_figures(turn),
            start_time_ns=_ns(turn.started_ms),
        )
        span.set_outputs({"keystrokes": turn.keystrokes})
        span.end(end_time_ns=_ns(turn.ended_ms))
    root.set_outputs({"reward": trajectory.reward, "passed": trajectory.passed, "total": trajectory.total})
    root.end(end_time_ns=_ns(trajectory.turns[-1].ended_ms))
    mlflow.flush_trace_async_logging()
    return True


def _figures(turn: TurnView) -> dict[str, Any]:
    figures = {"tokens.prompt": turn.prompt_tokens, "tokens.sampled": turn.sampled_tokens}
    return figures if turn.logprob_mean is None else {**figures, "logprob.mean": turn.logprob_mean}


def _ns(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1_000_000


def _is_logged(tracker: Tracker, run: Run, trial_id: str) -> bool:
    found = tracker.client.search_traces(
        locations=[run.experiment_id], filter_string=f"tags.`{_TRIAL}` = '{trial_id}'", include_spans=False
    )
    return bool(found)
