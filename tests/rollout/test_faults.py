"""Faults that the rollouts of other projects had (the public report is named)."""

from __future__ import annotations

from collections import Counter

import pytest

from components.errors import FaultCause
from components.rollout import Ledger, Origin, Outcome, rollout_metrics
from tests.rollout.parts import config, faulted, graded, reward, run_step, tasks


async def test_an_aborted_trial_costs_itself_and_not_its_group():
    # miles #2800: one aborted sample threw its whole group away; at 5 % faults and groups of 8 a third of all work.
    seen = []

    async def run(attempt):
        seen.append((attempt.task.ref.task_id, attempt.trial_id))
        if attempt.task.ref.task_id == "files-1" and len([name for name, _ in seen if name == "files-1"]) == 2:
            return faulted(attempt.trial_id, attempt.task.ref)
        return graded(attempt.trial_id, attempt.task.ref)

    settings = config(batch=8, oversample=0)
    result = await run_step(run, tasks(9), settings, group=4)
    assert Counter(trial.task.task_id for trial in result.trials) == {"files-0": 4, "files-1": 4}
    assert Counter(name for name, _ in seen) == {"files-0": 4, "files-1": 5}
    assert len({trial_id for _, trial_id in seen}) == 9
    assert result.consumed == 2


def test_a_trial_without_a_verdict_is_in_no_mean():
    # NeMo-Gym #2552/#2611, miles #2802: infrastructure faults lowered the mean reward that was reported and trained.
    (one, two) = tasks(2)
    ledger = Ledger(0)
    for trial_id, task, outcome in (("a", one, Outcome.ADMITTED), ("b", two, Outcome.INFRA_FAULT)):
        ledger.launch(trial_id, task.ref, 1, origin=Origin.DRAWN)
        ledger.end(trial_id, outcome, fault=FaultCause.SANDBOX if outcome is Outcome.INFRA_FAULT else None)
    metrics = rollout_metrics([graded("a", one.ref)], [reward(0.3)], ledger, seconds=1.0)
    assert metrics["rollout/reward_mean"] == pytest.approx(0.3)
    assert (metrics["rollout/graded"], metrics["rollout/infra_faults"], metrics["fault/sandbox"]) == (1, 1, 1)
