"""A few trajectories of an evaluation as MLflow traces: failures first, since those are what one wants to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.artifacts import ArtifactStore
from tasks import tracking

if TYPE_CHECKING:
    from components.records import Reward, Trial
    from components.tracking import Run, Trajectory

FAILURES, SUCCESSES = 4, 2


def log_trajectories(store: ArtifactStore, run: Run, trials_key: str, checkpoint_key: str, step: int) -> int:
    """Logs a deterministic sample of stored trials, each once; gives how many were new."""
    from components.rollout import load_batch
    from components.tracking import log_trajectory

    batch = load_batch(store.tree(trials_key))
    tokenizer = _Decoder(store.tree(checkpoint_key))
    graded = sorted(zip(batch.trials, batch.rewards, strict=True), key=lambda pair: pair[0].trial_id)
    failed = [pair for pair in graded if not pair[1].outcome][:FAILURES]
    passed = [pair for pair in graded if pair[1].outcome][:SUCCESSES]
    shown = [_trajectory(trial, reward, tokenizer) for trial, reward in failed + passed]
    return sum(log_trajectory(tracking.tracker(), run, each, step) for each in shown)


class _Decoder:
    """Token ids to text, with a checkpoint's own tokenizer."""

    def __init__(self, checkpoint: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))

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
