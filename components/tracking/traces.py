"""Trajectories as MLflow traces, one span a turn, after the fact.

Invariants: a trajectory is logged once (the trial id is a tag of its trace); what one costs is bounded, whatever the
trajectory's size. Which ones are worth it others decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlflow
from mlflow.entities import SpanType

from components.tracking.tracker import Run, Tracker, told

_TRIAL = "longshell.trial_id"
MAX_CHARS = 4_000
"""Of each text in a trace; its middle is left out. The trial's own page shows more."""
MAX_SPANS = 100
"""Turns of a trace, the first and the last ones: a span takes a few milliseconds."""


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


@dataclass(frozen=True)
class Trace:
    """A logged trajectory: the id of its trace, and whether this call logged it."""

    trace_id: str
    is_new: bool


@told
def log_trajectory(
    tracker: Tracker, run: Run, trajectory: Trajectory, step: int, tags: Mapping[str, str] | None = None
) -> Trace | None:
    """Logs a trajectory unless it was logged before; None where it has no turn. `tags` are set either way."""
    if not trajectory.turns:
        return None
    trace_id = _logged(tracker, run, trajectory.trial_id)
    made = _log(run, trajectory, step) if trace_id is None else trace_id
    for name, value in (tags or {}).items():
        tracker.client.set_trace_tag(made, name, value)
    return Trace(made, trace_id is None)


def _log(run: Run, trajectory: Trajectory, step: int) -> str:
    turns, half = list(enumerate(trajectory.turns)), MAX_SPANS // 2
    shown = turns if len(turns) <= MAX_SPANS else turns[:half] + turns[-half:]
    root = mlflow.start_span_no_context(
        name=trajectory.task_id,
        span_type=SpanType.AGENT,
        inputs={"instruction": _cut(trajectory.instruction)},
        tags={_TRIAL: trajectory.trial_id, "longshell.step": str(step), "longshell.stop": trajectory.stop},
        metadata={"mlflow.sourceRun": run.run_id},
        experiment_id=run.experiment_id,
        start_time_ns=_ns(trajectory.turns[0].started_ms),
    )
    for number, turn in shown:
        span = mlflow.start_span_no_context(
            name=f"turn {number}",
            span_type=SpanType.LLM,
            parent_span=root,
            inputs={"screen": _cut(turn.screen)},
            attributes=_figures(turn),
            start_time_ns=_ns(turn.started_ms),
        )
        span.set_outputs({"keystrokes": _cut(turn.keystrokes)})
        span.end(end_time_ns=_ns(turn.ended_ms))
    ended = {"reward": trajectory.reward, "passed": trajectory.passed, "total": trajectory.total}
    root.set_outputs({**ended, "turns": len(turns), "turns_shown": len(shown)})
    root.end(end_time_ns=_ns(trajectory.turns[-1].ended_ms))
    mlflow.flush_trace_async_logging()
    return str(root.trace_id)


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _figures(turn: TurnView) -> dict[str, Any]:
    figures = {"tokens.prompt": turn.prompt_tokens, "tokens.sampled": turn.sampled_tokens}
    return figures if turn.logprob_mean is None else {**figures, "logprob.mean": turn.logprob_mean}


def _ns(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1_000_000


def _logged(tracker: Tracker, run: Run, trial_id: str) -> str | None:
    """The trace of a trajectory that was logged before."""
    found = tracker.client.search_traces(
        locations=[run.experiment_id], filter_string=f"tags.`{_TRIAL}` = '{trial_id}'", include_spans=False
    )
    return str(found[0].info.trace_id) if found else None
