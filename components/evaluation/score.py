"""Scores of a suite of trials.

Invariants: an infrastructure fault is in no figure and counted beside them (but for the one denominator that is there
to show what it would change); a task's attempts are averaged before tasks are, so that no task weighs more for having
been tried more; a statistic that cannot be computed is None.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from components.config import RewardConfig
from components.errors import StopReason
from components.records import AssertionOutcome, Reward, Trial, VerifierReport
from components.reward import dense_reward
from components.rollout.ledger import metric_key

BUDGET = frozenset(
    {StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.AGENT_TIMEOUT, StopReason.COMPACTION_FAILED}
)
"""Ends that a larger budget would have put off."""

StderrEstimator = Literal["within_tasks", "across_tasks"]
"""What a standard error is of, which decides what two of them may be compared for. `within_tasks`, where every task has
several graded attempts: of these tasks, were they tried again; the suite is the population. `across_tasks`, where any
has only one: of other tasks like these, as a rule the larger one. A fault that leaves one task a single graded attempt
changes the one into the other for all of them."""


@dataclass(frozen=True, slots=True)
class ClassScore:
    """What was reached within one class of tasks. Means are over graded trials that have the figure."""

    tasks: int
    trials: int
    resolved: float
    stderr: float | None
    stderr_estimator: StderrEstimator | None
    turns_mean: float | None
    sampled_tokens_mean: float | None


@dataclass(frozen=True, slots=True)
class Denominator:
    """The resolved rate over one choice of trials."""

    tasks: int
    trials: int
    resolved: float | None


@dataclass(frozen=True, slots=True)
class SuiteScore:
    """What a model reached on a suite.

    Attributes:
        tasks: tasks with at least one graded trial.
        trials: graded trials.
        faults: trials that ended in an infrastructure fault; they are in no other figure.
        infra_rate: faults over all trials.
        resolved: mean over tasks of the share of attempts that resolved it; None without a graded trial.
        stderr: standard error of `resolved`; None where it cannot be told.
        stderr_estimator: what it is of (`StderrEstimator`); None without one.
        pass_at_k: unbiased estimate for every k up to the fewest attempts of a task; empty with one attempt a task.
        denominators: `all` trials, those that ended in a fault taken for unresolved (what Harbor prints, and the least
            that is true); those that were `graded`, which is `resolved`; and of these the `finished` ones, whose agent
            was not ended by a budget.
        mean_reward: mean over tasks of the dense reward; None when a task lacks the assertion list it is credited by.
        verifier_reward: mean over tasks of what their verifiers wrote for Harbor, or of the verdict, 0 or 1, of one
            that wrote no number.
        assertions_passed: passed over all assertions of graded trials; None when no report lists any.
        turns_mean: mean turns of a graded trial.
        sampled_tokens_mean, prompt_tokens_mean: mean of the tokens that were drawn in a graded trial, and of those of
            all its prompts together.
        tampered: graded trials that worked against the verifier; None where none was looked at for it.
        stops: graded trials by stop reason.
        by_category, by_difficulty: the resolved rate of each class.
    """

    tasks: int
    trials: int
    faults: int
    infra_rate: float | None
    resolved: float | None
    stderr: float | None
    stderr_estimator: StderrEstimator | None
    pass_at_k: Mapping[int, float]
    denominators: Mapping[str, Denominator]
    mean_reward: float | None
    verifier_reward: float | None
    assertions_passed: float | None
    assertions: int
    turns_mean: float | None
    sampled_tokens_mean: float | None
    prompt_tokens_mean: float | None
    tampered: int | None
    stops: Mapping[str, int]
    by_category: Mapping[str, ClassScore]
    by_difficulty: Mapping[str, ClassScore]

    def to_json(self) -> dict[str, Any]:
        """Plain values; keys of `pass_at_k` become strings."""
        return asdict(self) | {"pass_at_k": {str(k): value for k, value in self.pass_at_k.items()}}

    def metrics(self, series: str) -> dict[str, float]:
        """The `eval/<series>/...` series of design section 10; absent where None."""
        prefix = f"eval/{series}"
        values: dict[str, float | None] = {
            "resolved": self.resolved,
            "stderr": self.stderr,
            "mean_reward": self.mean_reward,
            "verifier_reward": self.verifier_reward,
            "infra_rate": self.infra_rate,
            "turns_mean": self.turns_mean,
            "sampled_tokens_mean": self.sampled_tokens_mean,
            "prompt_tokens_mean": self.prompt_tokens_mean,
            "assertions_passed": self.assertions_passed,
            "tampered": None if self.tampered is None else float(self.tampered),
            "trials": float(self.trials),
            "faults": float(self.faults),
        }
        values |= {f"pass_at_{k}": value for k, value in self.pass_at_k.items()}
        for name, one in self.denominators.items():
            values |= {f"resolved_of/{name}": one.resolved, f"trials_of/{name}": float(one.trials)}
        for column, classes in (("category", self.by_category), ("difficulty", self.by_difficulty)):
            values |= {
                f"{figure}_by/{metric_key(f'{column}.{name}')}": value
                for name, score in classes.items()
                for figure, value in (("resolved", score.resolved), ("turns", score.turns_mean))
            }
        return {f"{prefix}/{name}": value for name, value in values.items() if value is not None}


def aggregate(trials: Sequence[Trial], reward: RewardConfig | None = None) -> SuiteScore:
    """Scores `trials`, any number of attempts a task.

    `reward` says how `mean_reward` is computed; without it every passed assertion counts.
    """
    graded = [trial for trial in trials if trial.report is not None]
    faults = len(trials) - len(graded)
    by_task = _by_task(graded)
    resolved, stderr, estimator = _resolved(by_task)
    passed, assertions = _assertions(graded)
    return SuiteScore(
        tasks=len(by_task),
        trials=len(graded),
        faults=faults,
        infra_rate=faults / len(trials) if trials else None,
        resolved=resolved,
        stderr=stderr,
        stderr_estimator=estimator,
        pass_at_k=_pass_at_k(by_task),
        denominators=_denominators(trials, graded),
        mean_reward=_mean_reward(by_task, reward or RewardConfig(credit="count")),
        verifier_reward=_mean_of_means(by_task, _number) if by_task else None,
        assertions_passed=passed / assertions if assertions else None,
        assertions=assertions,
        turns_mean=_mean_known(graded, _turns),
        sampled_tokens_mean=_mean_known(graded, _sampled_tokens),
        prompt_tokens_mean=_mean_known(graded, _prompt_tokens),
        tampered=_tampered(graded),
        stops=_stops(graded),
        by_category=_by_class({trial.task.task_id: trial.task.category for trial in graded}, by_task),
        by_difficulty=_by_class({trial.task.task_id: trial.task.difficulty for trial in graded}, by_task),
    )


def _by_task(graded: Sequence[Trial]) -> dict[str, list[Trial]]:
    by_task: dict[str, list[Trial]] = defaultdict(list)
    for trial in graded:
        by_task[trial.task.task_id].append(trial)
    return dict(by_task)


def _denominators(trials: Sequence[Trial], graded: Sequence[Trial]) -> dict[str, Denominator]:
    finished = [trial for trial in graded if trial.stop not in BUDGET]
    return {name: _over(chosen) for name, chosen in (("all", trials), ("graded", graded), ("finished", finished))}


def _over(trials: Sequence[Trial]) -> Denominator:
    by_task = _by_task(trials)
    return Denominator(len(by_task), len(trials), _mean_of_means(by_task, _passed) if by_task else None)


def _mean_of_means(by_task: Mapping[str, Sequence[Trial]], value: Callable[[Trial], float]) -> float:
    return _mean([_mean([value(trial) for trial in attempts]) for attempts in by_task.values()])


def _resolved(by_task: Mapping[str, Sequence[Trial]]) -> tuple[float | None, float | None, StderrEstimator | None]:
    """Mean of per-task means, its standard error (None when it cannot be told), and what that is of."""
    n = len(by_task)
    if not n:
        return None, None, None
    counts = [(sum(_passed(trial) for trial in attempts), len(attempts)) for attempts in by_task.values()]
    rates = [won / tried for won, tried in counts]
    mean = _mean(rates)
    if all(tried > 1 for _, tried in counts):
        variance = sum((won / tried) * (1 - won / tried) / (tried - 1) for won, tried in counts)
        return mean, math.sqrt(variance) / n, "within_tasks"
    if n == 1:
        return mean, None, None
    return mean, math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (n - 1) / n), "across_tasks"


def _pass_at_k(by_task: Mapping[str, Sequence[Trial]]) -> dict[int, float]:
    """1 - C(n-c, k)/C(n, k), averaged over tasks."""
    fewest = min((len(attempts) for attempts in by_task.values()), default=0)
    if fewest < 2:
        return {}
    counts = [(sum(_passed(trial) for trial in attempts), len(attempts)) for attempts in by_task.values()]
    return {
        k: _mean([1 - math.comb(tried - won, k) / math.comb(tried, k) for won, tried in counts])
        for k in range(1, fewest + 1)
    }


def _by_class(class_of: Mapping[str, str], by_task: Mapping[str, Sequence[Trial]]) -> dict[str, ClassScore]:
    scores = {}
    for name in sorted(set(class_of.values())):
        tasks = {task: attempts for task, attempts in by_task.items() if class_of[task] == name}
        resolved, stderr, estimator = _resolved(tasks)
        assert resolved is not None, "a class has at least one task"
        trials = [trial for attempts in tasks.values() for trial in attempts]
        turns, tokens = _mean_known(trials, _turns), _mean_known(trials, _sampled_tokens)
        scores[name] = ClassScore(len(tasks), len(trials), resolved, stderr, estimator, turns, tokens)
    return scores


def _assertions(graded: Sequence[Trial]) -> tuple[int, int]:
    outcomes = [outcome for trial in graded if trial.report for outcome in trial.report.assertions.values()]
    return sum(outcome is AssertionOutcome.PASSED for outcome in outcomes), len(outcomes)


def _tampered(graded: Sequence[Trial]) -> int | None:
    looked = [trial.facts["tampering"] for trial in graded if "tampering" in trial.facts]
    return sum(map(bool, looked)) if looked else None


def _stops(graded: Sequence[Trial]) -> dict[str, int]:
    found = Counter(trial.stop for trial in graded)
    return {reason.value: found[reason] for reason in StopReason}


def _mean_reward(by_task: Mapping[str, Sequence[Trial]], config: RewardConfig) -> float | None:
    trials = [trial for attempts in by_task.values() for trial in attempts]
    if not trials or (config.credit == "fail_to_pass" and not all(trial.task.fail_to_pass for trial in trials)):
        return None
    return _mean_of_means(by_task, lambda trial: _reward(trial, config).value)


def _reward(trial: Trial, config: RewardConfig) -> Reward:
    report = _report(trial)
    return dense_reward(
        report,
        bool(report.outcome),
        scale=config.scale,
        credit=config.credit,
        fail_to_pass=trial.task.fail_to_pass or None,
    )


def _turns(trial: Trial) -> float | None:
    """As counted by who ran the trial where that was not us; then its turns are not recorded."""
    return _counted(trial, "turns") if "turns" in trial.facts else len(trial.turns)


def _sampled_tokens(trial: Trial) -> float | None:
    if "sampled_tokens" in trial.facts:
        return _counted(trial, "sampled_tokens")
    return sum(len(turn.completion_ids) for turn in trial.turns)


def _prompt_tokens(trial: Trial) -> float | None:
    if "prompt_tokens" in trial.facts:
        return _counted(trial, "prompt_tokens")
    return sum(len(turn.prompt_ids) for turn in trial.turns)


def _counted(trial: Trial, name: str) -> float | None:
    value: float | None = trial.facts[name]
    return value


def _number(trial: Trial) -> float:
    """What the verifier wrote; its verdict where it wrote no number."""
    report = _report(trial)
    return float(report.outcome is True) if report.number is None else report.number


def _passed(trial: Trial) -> bool:
    return trial.report is not None and trial.report.outcome is True


def _report(trial: Trial) -> VerifierReport:
    assert trial.report is not None, "only graded trials are scored"
    return trial.report


def _mean_known(trials: Sequence[Trial], figure: Callable[[Trial], float | None]) -> float | None:
    """Over the trials that have the figure; None where none has."""
    known = [value for trial in trials if (value := figure(trial)) is not None]
    return _mean(known) if known else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
