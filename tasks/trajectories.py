"""A few trajectories as MLflow traces: of an evaluation, failures first; of a leg, those that its report names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger

from components.artifacts import ArtifactStore
from components.errors import LongshellError
from components.naming import page_of, tokenizer_key
from tasks import tracking

if TYPE_CHECKING:
    from components.records import Reward, Trial
    from components.tracking import Run, Trajectory

FAILURES, SUCCESSES = 4, 2
PAGE = "longshell.page"
"""Tag of a trace: where the trial's page is."""


def log_trajectories(store: ArtifactStore, run: Run, campaign: str, trials_key: str, step: int) -> int:
    """Logs a deterministic sample of stored trials, each once; gives how many were new."""
    from components.rollout import load_batch
    from components.tracking import log_trajectory

    with store.borrowed(trials_key) as folder:
        batch = load_batch(folder)
    tokenizer = _decoder(store, campaign)
    graded = sorted(zip(batch.trials, batch.rewards, strict=True), key=lambda pair: pair[0].trial_id)
    failed = [pair for pair in graded if not pair[1].outcome][:FAILURES]
    passed = [pair for pair in graded if pair[1].outcome][:SUCCESSES]
    shown = [_trajectory(trial, reward, tokenizer) for trial, reward in failed + passed]
    traces = [log_trajectory(tracking.tracker(), run, each, step) for each in shown]
    return sum(trace is not None and trace.is_new for trace in traces)


def link_trajectories(
    store: ArtifactStore, run: Run, campaign: str, trajectories: Sequence[Mapping[str, Any]], place: str
) -> dict[str, dict[str, str]]:
    """Keeps the pages of a report's trials with the run, below `place`, and their traces; gives the links of each.

    Without an MLflow server there is nothing to link to, and a page stands beside its report. A trial that cannot be
    read has neither; the job has told why.
    """

    links: dict[str, dict[str, str]] = {}
    for told in (each for each in trajectories if each["page"] is not None):
        trial, path = told["row"]["trial_id"], page_of(told["row"]["trial_id"])
        tracking.tracker().log_bytes(run, f"{place}/{path}", store.get_bytes(told["page"]))
        links[trial] = {"page": tracking.file_link(run, f"{place}/{path}") or path}
        if (trace := _trace(store, run, campaign, told, links[trial]["page"])) is not None:
            links[trial]["trace"] = trace
    return links


def _trace(store: ArtifactStore, run: Run, campaign: str, told: Mapping[str, Any], page: str) -> str | None:
    """The link of a trial's trace. A report that lacks one is better than none."""
    from components.rollout import load_batch
    from components.tracking import log_trajectory

    try:
        trial_id = told["row"]["trial_id"]
        with store.borrowed(told["batch"]) as folder:
            batch = load_batch(folder, only={trial_id})
        seen = _trajectory(batch.trials[0], batch.rewards[0], _decoder(store, campaign))
    except LongshellError as error:
        get_run_logger().warning("trial %s has no trace: %s", told["row"]["trial_id"], error)
        return None
    trace = log_trajectory(tracking.tracker(), run, seen, int(told["step"]), {PAGE: page})
    return None if trace is None else tracking.trace_link(run, trace.trace_id)


def _decoder(store: ArtifactStore, campaign: str) -> _Decoder:
    """With the tokenizer that a campaign's jobs keep by itself: a checkpoint in a bucket would come whole."""
    return _Decoder(store.tree(tokenizer_key(campaign)))


class _Decoder:
    """Token ids to text, with a campaign's own tokenizer."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, ids: Any) -> str:
        return str(self._tokenizer.decode([int(each) for each in ids], skip_special_tokens=False))


def _trajectory(trial: Trial, reward: Reward, decoder: _Decoder) -> Trajectory:
    from components.tracking import Trajectory, TurnView

    turns, shown = [], 0
    for turn in trial.turns:
        turns.append(
            TurnView(
                screen=decoder.text(turn.prompt_ids[shown:]),
                keystrokes=decoder.text(turn.completion_ids),
                prompt_tokens=len(turn.prompt_ids),
                sampled_tokens=len(turn.completion_ids),
                logprob_mean=float(turn.logprobs.mean()) if len(turn.logprobs) else None,
            )
        )
        shown = len(turn.prompt_ids) + len(turn.completion_ids)
    return Trajectory(
        trial_id=trial.trial_id,
        task_id=trial.task.task_id,
        instruction=turns[0].screen if turns else "",
        stop=str(trial.stop),
        reward=reward.value,
        passed=reward.passed,
        total=reward.total,
        turns=turns,
    )
