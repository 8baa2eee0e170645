"""The native runner."""

import asyncio

import pytest

from components.evaluation import aggregate, evaluate
from tests.evaluation.test_score import trial


async def test_every_task_is_tried_as_often_as_asked_and_no_more_at_once_than_allowed():
    alive = peak = 0

    async def run(task, attempt, number):
        nonlocal alive, peak
        alive += 1
        peak = max(peak, alive)
        await asyncio.sleep(0.001)
        alive -= 1
        return trial(task, True, attempt)

    trials = await evaluate(["a", "b", "c", "d"], run, attempts=3, concurrency=5)
    assert [t.trial_id for t in trials] == [f"{task}-{n}" for task in "abcd" for n in (1, 2, 3)]
    assert peak == 5


async def test_a_fault_is_tried_again_and_what_remains_of_faults_is_in_the_result():
    calls = []

    async def run(task, attempt, number):
        calls.append((task, number))
        return trial(task, None if task == "bad" or (task == "flaky" and number == 1) else True)

    trials = await evaluate(["good", "flaky", "bad"], run, tries=2, concurrency=1)
    assert calls == [("good", 1), ("flaky", 1), ("flaky", 2), ("bad", 1), ("bad", 2)]
    score = aggregate(trials)
    assert (score.resolved, score.faults) == (1.0, 1)


async def test_an_error_in_our_own_code_is_raised_as_itself():
    async def run(task, attempt, number):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await evaluate(["a", "b"], run)
