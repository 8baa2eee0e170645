"""Faults that the rollouts of other projects had (the public report is named)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from components.errors import FaultCause
from components.records import TaskRef
from components.rollout import Barrier, Ledger, Origin, Outcome, Rollout, rollout_metrics
from tests.rollout.parts import PlainTask, config, faulted, graded, reward, run_step, tasks
from tests.rollout.test_carry import Agents, back, rows


class Together:
    """Five trials that end in the same instant; later ones end at once. Counts how often each task was run."""

    def __init__(self, tail):
        self.ran = Counter()
        self.all_run = asyncio.Event()
        settings = config(batch=3, oversample=0.5, tail=tail)
        self.rollout = Rollout(campaign="c", config=settings, run_trial=self, barrier=Barrier())

    async def __call__(self, attempt):
        self.ran[attempt.task.ref.task_id] += 1
        if self.ran.total() == 5:
            self.all_run.set()
        await self.all_run.wait()
        return graded(attempt.trial_id, attempt.task.ref)


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


async def test_what_ended_beyond_the_batch_is_the_next_steps_and_none_of_it_is_lost():
    # slime #2238: an asynchronous drain dropped the finished groups that a step did not need; AReaL's queue froze.
    supply, agents = tasks(10), Together("carry")
    first = await agents.rollout.step(0, 0, supply[:5])
    assert (len(first.trials), len(first.unfinished), first.consumed) == (3, 2, 5)
    second = await agents.rollout.step(1, 1, supply[5:], back(first, supply))
    admitted = Counter(trial.task.task_id for trial in (*first.trials, *second.trials))
    assert {task.ref.task_id for task in supply[:5]} <= set(admitted)
    assert set(admitted.values()) == set(agents.ran.values()) == {1}
    assert {trial.trial_id for trial in first.unfinished} <= {trial.trial_id for trial in second.trials}


async def test_what_ended_beyond_the_batch_is_told_as_cancelled_where_the_tail_is_cut():
    # The paper's rule, `tail: cancel`: the two are dropped as in slime #2238, but the ledger and its classes say so.
    supply, agents = tasks(10), Together("cancel")
    first = await agents.rollout.step(0, 0, supply[:5])
    assert (len(first.trials), first.unfinished, first.consumed) == (3, (), 5)
    dropped = rows(first, Outcome.CANCELLED)
    assert [row.detail for row in dropped] == ["completed after the batch was full"] * 2
    assert first.ledger.metrics()["rollout/cancelled_by/category.files"] == 2
    second = await agents.rollout.step(1, 1, supply[5:], back(first, supply))
    assert not {row.task_id for row in dropped} & {row.task_id for row in second.ledger.rows}


class Slow:
    """Seven steps of a supply in which one task of six is slower than any step."""

    def __init__(self, tail):
        kinds = ["slow" if number % 6 == 1 else "quick" for number in range(60)]
        refs = [TaskRef("pool", f"{kind}-{i}", "d", kind, difficulty="easy") for i, kind in enumerate(kinds)]
        self.supply = [PlainTask(ref) for ref in refs]
        self.agents = Agents({ref.task_id: 40 for ref in refs if ref.category == "slow"})
        self.rollout = self.agents.rollout(tail=tail, max_streak=2)
        self.results = []

    async def run(self):
        at, owed = 0, []
        for step in range(7):
            result = await self.rollout.step(step, step, self.supply[at : at + 6], owed)
            at, owed = at + result.consumed, back(result, self.supply)
            self.results.append(result)

    def figures(self, name):
        found = [result.ledger.metrics().get(f"rollout/{name}/category.slow") for result in self.results]
        return [value for value in found if value is not None]

    def histories(self):
        """What became of each slow task that was drawn, step after step."""
        rows = [row for result in self.results for row in result.ledger.rows if row.category == "slow"]
        return [[(r.outcome, r.streak) for r in rows if r.task_id == name] for name in {r.task_id: 0 for r in rows}]

    def trained(self):
        return Counter(trial.task.category for result in self.results for trial in result.trials)


async def test_a_class_of_tasks_that_outlast_every_step_is_trained_within_max_streak_in_its_share():
    # tinker-cookbook #822, torchtitan's windowed FIFO: what is stale is dropped, so slow tasks are never trained.
    slow = Slow("retry")
    await slow.run()
    whole = [(Outcome.CANCELLED, 0), (Outcome.CANCELLED, 1), (Outcome.ADMITTED, 2)]
    histories = slow.histories()
    assert all(history == whole[: len(history)] for history in histories)
    trained = slow.trained()
    assert histories.count(whole) == trained["slow"] >= 3
    assert trained["slow"] / trained.total() == pytest.approx(1 / 6, abs=0.06)
    assert slow.figures("share_gap")[0] == pytest.approx(-1 / 6)
    assert max(slow.figures("share_gap")) > 0
    assert sum(slow.figures("cancelled_by")) == sum(out is Outcome.CANCELLED for h in histories for out, _ in h)


async def test_a_class_that_the_papers_rule_never_trains_shows_as_a_gap_of_its_whole_share():
    # The paper's rule, `tail: cancel`, is the discarding of tinker-cookbook #822: it is kept, and told in every step.
    slow = Slow("cancel")
    await slow.run()
    assert slow.trained() == {"quick": 28}
    assert slow.figures("share_gap") == [pytest.approx(-1 / 6)] * 7
    assert slow.figures("cancelled_by") == [1] * 7
