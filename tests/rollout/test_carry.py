"""Steps that do not forget their tail: what they pass over goes on, or comes back first."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import FaultCause, InfraFault
from components.rollout import Barrier, Origin, Outcome, Rollout, Unfinished
from tests.rollout.parts import config, faulted, graded, tasks


class Agents:
    """Trials of as many turns as their task's number says, each behind the barrier; remembers what they were."""

    def __init__(self, turns, faults=()):
        self.turns = turns
        self.faults = list(faults)
        self.barrier = Barrier()
        self.versions = {}
        self.alive = set()

    async def __call__(self, attempt):
        name = attempt.task.ref.task_id
        versions = self.versions.setdefault(attempt.trial_id, [])
        self.alive.add(attempt.trial_id)
        try:
            for _ in range(self.turns.get(name, 1)):
                async with self.barrier.draw(attempt.time):
                    versions.append(self.barrier.version)
                    await asyncio.sleep(0.001)
                attempt.progress.turns += 1
            if name in self.faults:
                self.faults.remove(name)
                return faulted(attempt.trial_id, attempt.task.ref)
            return graded(attempt.trial_id, attempt.task.ref)
        finally:
            self.alive.discard(attempt.trial_id)

    def rollout(self, group=1, **changes):
        changes = {"batch": 4, "oversample": 0.5, "tail": "carry"} | changes
        return Rollout(campaign="c", config=config(**changes), run_trial=self, barrier=self.barrier, group=group)


async def end_all():
    """Ends what waits at the barrier, as the end of its process would."""
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def rows(result, *outcomes):
    return [row for row in result.ledger.rows if row.outcome in outcomes]


def back(result, supply):
    by_id = {task.ref.task_id: task for task in supply}
    return [(by_id[trial.task_id], trial) for trial in result.unfinished]


async def test_an_unfinished_trial_goes_on_under_the_next_version_and_is_admitted_there():
    supply = tasks(12)
    agents = Agents({"files-1": 10} | {f"files-{i}": 60 for i in range(6, 12)})
    rollout = agents.rollout()
    first = await rollout.step(0, 0, supply[:6])
    (slow,) = [row for row in rows(first, Outcome.CARRIED) if row.task_id == "files-1"]
    assert agents.alive == {slow.trial_id}
    done = len(agents.versions[slow.trial_id])
    await asyncio.sleep(0.02)
    assert len(agents.versions[slow.trial_id]) == done < 10

    second = await rollout.step(1, 1, supply[6:], back(first, supply))
    (row,) = [row for row in second.ledger.rows if row.trial_id == slow.trial_id]
    assert (row.origin, row.streak, row.outcome, row.turns) == (Origin.RESUMED, 1, Outcome.ADMITTED, 10)
    assert second.consumed == 6 - len(first.unfinished)
    await end_all()
    assert agents.alive == set()


async def test_a_carried_trial_draws_each_turn_under_the_version_of_its_step():
    supply = tasks(40)
    agents = Agents({"files-1": 60})
    rollout = agents.rollout(oversample=0.25)
    result, admitted = None, []
    for step in range(5):
        result = await rollout.step(step, step, supply[6 * step : 6 * step + 6], back(result, supply) if result else [])
        admitted += [trial.trial_id for trial in result.trials]
    (versions,) = [v for name, v in agents.versions.items() if len(set(v)) > 2]
    assert versions == sorted(versions)
    assert len(admitted) == len(set(admitted)) == 20
    await end_all()


async def test_a_trial_that_ends_after_the_batch_is_full_is_kept_for_the_next():
    supply = tasks(12)
    agents = Agents({})
    rollout = agents.rollout()
    first = await rollout.step(0, 0, supply[:6])
    assert len(first.unfinished) == 2
    second = await rollout.step(1, 1, supply[6:], back(first, supply))
    kept = {trial.trial_id for trial in first.unfinished}
    assert kept <= {trial.trial_id for trial in second.trials}
    assert all(set(agents.versions[name]) == {0} for name in kept)


async def test_a_carried_trial_whose_process_died_starts_anew_and_keeps_its_streak():
    supply = tasks(12)
    agents = Agents({"files-1": 1_000})
    first = await agents.rollout().step(0, 0, supply[:6])
    other = Agents({})
    second = await other.rollout().step(1, 1, supply[6:], back(first, supply))
    again = [row for row in second.ledger.rows if row.origin is Origin.RETURNED]
    assert [(row.task_id, row.streak) for row in again] == [(t.task_id, 1) for t in first.unfinished]
    assert not {row.trial_id for row in again} & {trial.trial_id for trial in first.unfinished}
    await end_all()


async def test_cancelled_tasks_come_back_first_and_are_waited_for_in_the_end():
    supply = tasks(60)
    agents = Agents({"files-1": 30})
    rollout = agents.rollout(tail="retry", max_streak=2)
    result, seen = None, []
    for step in range(3):
        result = await rollout.step(step, step, supply[8 * step : 8 * step + 8], back(result, supply) if result else [])
        seen += [(row.outcome, row.streak) for row in result.ledger.rows if row.task_id == "files-1"]
    assert seen == [(Outcome.CANCELLED, 0), (Outcome.CANCELLED, 1), (Outcome.ADMITTED, 2)]
    assert agents.alive == set()


async def test_a_task_that_faulted_when_the_batch_was_full_comes_back():
    supply = tasks(12)
    agents = Agents({"files-5": 3}, faults=["files-5"])
    agents.turns |= {f"files-{i}": 2 for i in range(4)}
    first = await agents.rollout(tail="retry", oversample=0.5).step(0, 0, supply[:6])
    assert {row.outcome for row in first.ledger.rows} <= {Outcome.ADMITTED, Outcome.CANCELLED, Outcome.INFRA_FAULT}
    admitted = {row.task_id for row in rows(first, Outcome.ADMITTED)}
    assert {trial.task_id for trial in first.unfinished} == {f"files-{i}" for i in range(6)} - admitted


async def test_a_step_that_fails_ends_the_carried_trials_too():
    supply = tasks(12)
    agents = Agents({"files-1": 1_000})
    rollout = agents.rollout(max_fault_share=0.1, max_attempts=1)
    first = await rollout.step(0, 0, supply[:6])
    agents.faults = [f"files-{i}" for i in range(6, 12)]
    with pytest.raises(InfraFault) as raised:
        await rollout.step(1, 1, supply[6:], back(first, supply))
    assert raised.value.cause is FaultCause.SANDBOX
    assert agents.alive == set()


@settings(max_examples=25, deadline=None)
@given(
    tail=st.sampled_from(["cancel", "retry", "carry"]),
    turns=st.lists(st.integers(1, 8), min_size=48, max_size=48),
    faults=st.lists(st.integers(0, 47), max_size=6),
    concurrency=st.sampled_from([3, 64]),
    group=st.sampled_from([1, 2]),
)
def test_every_trial_has_one_row_a_step_and_no_task_is_forgotten(tail, turns, faults, concurrency, group):
    supply = tasks(48)
    agents = Agents({f"files-{i}": n for i, n in enumerate(turns)}, faults=[f"files-{i}" for i in faults])

    async def play():
        rollout = agents.rollout(tail=tail, concurrency=concurrency, group=group, oversample=0.5)
        results, at = [], 0
        for step in range(4):
            returning = back(results[-1], supply) if results else []
            results.append(await rollout.step(step, step, supply[at : at + 12], returning))
            at += results[-1].consumed
        await end_all()
        return results, at

    results, consumed = asyncio.run(play())
    admitted, owed = Counter(), []
    for result in results:
        result.ledger.check()
        names = [row.trial_id for row in result.ledger.rows]
        assert len(names) == len(set(names))
        assert len(rows(result, Outcome.ADMITTED)) == len(result.trials) <= 4
        resumed = [row.trial_id for row in result.ledger.rows if row.origin is Origin.RESUMED]
        assert resumed == [trial.trial_id for trial in owed if trial.trial_id is not None]
        came_back = {row.task_id for row in result.ledger.rows if row.origin is not Origin.DRAWN}
        still_owed = {trial.task_id for trial in result.unfinished}
        assert {trial.task_id for trial in owed} <= came_back | still_owed
        owed = list(result.unfinished)
        admitted.update(row.task_id for row in rows(result, Outcome.ADMITTED))
    assert all(count <= group for count in admitted.values())
    if tail != "cancel":
        faulted_out = {row.task_id for result in results for row in rows(result, Outcome.INFRA_FAULT)}
        seen = set(admitted) | {trial.task_id for trial in owed} | faulted_out
        assert {task.ref.task_id for task in supply[:consumed]} <= seen
    assert agents.alive == set()


def test_an_unfinished_trial_is_a_plain_record():
    trial = Unfinished("files-1", None, 0, 2)
    assert Unfinished(**trial.record()) == trial
