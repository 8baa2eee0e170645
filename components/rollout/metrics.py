"""The `rollout/...` and `stop/...` series of one step (design section 10). A mean stands beside the count it is over.

Invariant: a mean over nothing is absent, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from components.errors import StopReason
from components.records import AssertionOutcome, Reward, Trial
from components.rollout.ledger import Ledger


def rollout_metrics(
    trials: Sequence[Trial], rewards: Sequence[Reward], ledger: Ledger, *, seconds: float
) -> dict[str, float]:
    """Series of the admitted `trials`, their `rewards` (one a trial) and the step's ledger."""
    stops = Counter(trial.stop for trial in trials)
    metrics = ledger.metrics() | {"rollout/seconds": seconds, "rollout/graded": float(len(trials))}
    metrics |= {f"stop/{reason.value}": float(stops[reason]) for reason in StopReason}
    total = sum(reward.total for _, reward in zip(trials, rewards, strict=True))
    metrics["rollout/assertions_total"] = float(total)
    if total:
        metrics["rollout/assertions_passed"] = sum(reward.passed for reward in rewards) / total
    if trials:
        turns_B = np.array([len(trial.turns) for trial in trials])
        tokens_B = np.array([trial_tokens(trial) for trial in trials])
        metrics |= {
            "rollout/reward_mean": float(np.mean([reward.value for reward in rewards])),
            "rollout/pass_rate": float(np.mean([reward.outcome for reward in rewards])),
            "rollout/zero_reward_share": float(np.mean([reward.value == 0 for reward in rewards])),
            "rollout/report_fallbacks": float(sum(reward.fallback is not None for reward in rewards)),
            "rollout/turns_mean": float(turns_B.mean()),
            "rollout/turns_p90": float(np.quantile(turns_B, 0.9)),
            "rollout/tokens_mean": float(tokens_B.mean()),
        }
    if failures := [trial.facts["parse_failures"] for trial in trials if "parse_failures" in trial.facts]:
        metrics["rollout/parse_failures"] = float(sum(failures))
    return metrics | _compactions(trials) | _repeats(trials) | _guards(trials) | _signs(trials) | _phases(trials)


def _signs(trials: Sequence[Trial]) -> dict[str, float]:
    """How many graded trials had worked against the verifier, or left programs running; absent where none was looked
    at."""
    found = {"tampered": "tampering", "left_running": "left_running"}
    return {
        f"rollout/{name}": float(sum(bool(trial.facts[fact]) for trial in trials if fact in trial.facts))
        for name, fact in found.items()
        if any(fact in trial.facts for trial in trials)
    }


def trial_tokens(trial: Trial) -> int:
    """Length of the trial's last stream: the context it had grown to."""
    return len(trial.turns[-1].prompt_ids) + len(trial.turns[-1].completion_ids) if trial.turns else 0


def _compactions(trials: Sequence[Trial]) -> dict[str, float]:
    """Histories rewritten, tried and done; absent where no trial's agent counts them."""
    found = {}
    for name in ("compactions_attempted", "compactions_succeeded"):
        counts = [trial.facts[name] for trial in trials if name in trial.facts]
        if counts:
            found[f"rollout/{name}"] = float(sum(counts))
    return found


def _repeats(trials: Sequence[Trial]) -> dict[str, float]:
    """Share of turns that sent again what the turn before had sent; absent where no trial's agent counts them."""
    counted = [trial for trial in trials if "repeated_commands" in trial.facts and trial.turns]
    if not counted:
        return {}
    repeated = sum(trial.facts["repeated_commands"] for trial in counted)
    return {"rollout/repeated_share": repeated / sum(len(trial.turns) for trial in counted)}


def _guards(trials: Sequence[Trial]) -> dict[str, float]:
    """Trials that broke what had passed untouched; absent where no task has such assertions, or none was reported."""
    guarded = [trial for trial in trials if trial.task.pass_to_pass and trial.report and trial.report.assertions]
    if not guarded:
        return {}
    return {"rollout/guards_broken": float(sum(_broke_a_guard(trial) for trial in guarded))}


def _broke_a_guard(trial: Trial) -> bool:
    said = trial.report.assertions if trial.report else {}
    return any(said.get(name) in (AssertionOutcome.FAILED, AssertionOutcome.ERROR) for name in trial.task.pass_to_pass)


def _phases(trials: Sequence[Trial]) -> dict[str, float]:
    """Mean seconds of each phase, over the trials that went through it."""
    phases = sorted({phase for trial in trials for phase in trial.timings_s})
    return {
        f"rollout/{phase}_s_mean": float(np.mean([t.timings_s[phase] for t in trials if phase in t.timings_s]))
        for phase in phases
    }
