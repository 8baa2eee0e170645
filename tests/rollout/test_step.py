"""The asyncio shell of a step."""

import asyncio
import sys
import time

import pytest

from components.errors import FaultCause, InfraFault
from components.rollout import Origin, Outcome, trial_id
from tests.rollout.parts import config, faulted, graded, run_step, tasks


class Runner:
    """Runs trials by a script: seconds, a fault, or an error by task id; remembers who is alive."""

    def __init__(self, seconds=0.0, **special):
        self.seconds = seconds
        self.special = special
        self.launched, self.alive, self.peak, self.cleaned = [], set(), 0, 0

    async def __call__(self, attempt):
        name = attempt.task.ref.task_id
        self.launched.append(name)
        self.alive.add(attempt.trial_id)
        self.peak = max(self.peak, len(self.alive))
        attempt.progress.turns, attempt.progress.tokens = 4, 40
        try:
            what = self.special.get(name.replace("-", "_"), self.seconds)
            if isinstance(what, float):
                await asyncio.sleep(what)
                return graded(attempt.trial_id, attempt.task.ref)
            if isinstance(what, FaultCause):
                return faulted(attempt.trial_id, attempt.task.ref, what)
            raise what
        finally:
            await asyncio.shield(asyncio.sleep(0))
            self.cleaned += 1
            self.alive.discard(attempt.trial_id)


async def step(runner, supply=None, **changes):
    return await run_step(runner, supply or tasks(40), config(**changes))


async def test_the_first_b_are_admitted_and_the_tail_is_cancelled_and_counted():
    runner = Runner(files_0=30.0, files_5=30.0)
    result = await step(runner)
    assert len(result.trials) == 8
    assert {trial.task.task_id for trial in result.trials} == {f"files-{i}" for i in range(10)} - {"files-0", "files-5"}
    cut = [row for row in result.ledger.rows if row.outcome is Outcome.CANCELLED]
    assert {row.task_id for row in cut} == {"files-0", "files-5"}
    assert all((row.turns, row.tokens) == (4, 40) for row in cut)
    assert result.consumed == 10
    assert runner.alive == set()
    assert runner.cleaned == 10


async def test_no_more_than_the_cap_are_alive_at_once():
    runner = Runner(seconds=0.002)
    await step(runner, concurrency=3)
    assert runner.peak == 3


async def test_starts_are_paced():
    started = time.monotonic()
    await step(Runner(), batch=24, oversample=0, starts_per_s=20.0, supply=tasks(24))
    assert time.monotonic() - started >= 0.15


async def test_a_fault_is_tried_again_and_then_replaced():
    runner = Runner(files_3=FaultCause.SAMPLER)
    result = await step(runner, batch=8, oversample=0)
    assert runner.launched.count("files-3") == 2
    assert runner.launched.count("files-8") == 1
    assert len(result.trials) == 8
    assert result.consumed == 9
    rows = [row for row in result.ledger.rows if row.task_id == "files-3"]
    assert [(row.attempt, row.origin, row.fault) for row in rows] == [
        (1, Origin.DRAWN, FaultCause.SAMPLER),
        (2, Origin.RELAUNCHED, FaultCause.SAMPLER),
    ]


async def test_a_fault_that_is_raised_counts_like_one_that_is_returned():
    result = await step(Runner(files_3=InfraFault(FaultCause.STORE, "no")), batch=8, oversample=0)
    assert result.ledger.metrics()["fault/store"] == 2


async def test_too_many_faults_stop_the_step_with_the_commonest_cause():
    special = {f"files_{i}": FaultCause.IMAGE for i in range(40)} | {"files_1": FaultCause.SAMPLER}
    runner = Runner(**special)
    with pytest.raises(InfraFault, match="image: step 2: too many launched trials") as raised:
        await step(runner)
    assert raised.value.cause is FaultCause.IMAGE
    assert runner.alive == set()


async def test_a_trial_past_its_remote_deadline_is_a_fault_and_is_replaced():
    class Overdue(Runner):
        async def __call__(self, attempt):
            if attempt.task.ref.task_id == "files-0":
                attempt.time.advance(60)
            return await super().__call__(attempt)

    limits = {"agent_timeout_s": 20, "verifier_timeout_s": 20, "remote_timeout_s": 60}
    result = await step(Overdue(files_0=3600.0), batch=2, oversample=0, max_attempts=1, **limits)
    faults = [row for row in result.ledger.rows if row.outcome is Outcome.INFRA_FAULT]
    assert [row.detail for row in faults] == ["trial passed its remote deadline of 60 s"]
    assert len(result.trials) == 2


async def test_an_error_in_our_own_code_ends_everything_and_propagates():
    runner = Runner(seconds=30.0, files_2=ZeroDivisionError("bug"))
    with pytest.raises(ZeroDivisionError):
        await step(runner)
    assert runner.alive == set()


async def test_cancelling_the_step_ends_every_trial_first():
    runner = Runner(seconds=30.0)
    running = asyncio.create_task(step(runner))
    async with asyncio.timeout(60):
        while len(runner.alive) < 10:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert runner.alive == set()


async def test_a_supply_that_is_too_short_gives_a_short_batch():
    result = await step(Runner(files_1=FaultCause.SANDBOX), batch=4, oversample=0, supply=tasks(4))
    assert len(result.trials) == 3


async def test_a_task_that_stands_twice_in_the_supply_has_two_ids():
    result = await step(Runner(), batch=4, oversample=0, supply=tasks(2) + tasks(2))
    assert len({trial.trial_id for trial in result.trials}) == 4
    assert sorted(row.attempt for row in result.ledger.rows) == [1, 1, 3, 3]


def test_the_same_work_has_the_same_id_and_other_work_another():
    assert trial_id("c", 1, "t", 1) == trial_id("c", 1, "t", 1)
    assert len({trial_id("c", 1, "t", 1), trial_id("c", 1, "t", 2), trial_id("c", 11, "t", 1)}) == 3


def executed(work):
    """The opcodes that `work` executes: what it costs, on any machine."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_step_of_four_times_the_trials_costs_four_times_as_much():
    def work(batch):
        changes = {"batch": batch, "oversample": 0.125, "concurrency": 2 * batch}
        return lambda: asyncio.run(step(Runner(), supply=tasks(2 * batch), **changes))

    executed(work(8))
    assert executed(work(256)) < 5 * executed(work(64))
