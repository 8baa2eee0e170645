"""A trial's clock stands while it waits."""

import asyncio

import pytest

from components.harness import RunningTime
from tests.waiting import in_skipped_time


def now():
    return asyncio.get_running_loop().time()


@in_skipped_time
async def test_a_pause_does_not_count_towards_any_limit():
    clock = RunningTime()
    outer, inner = clock.limit(0.2), clock.limit(0.1)
    async with outer, inner:
        with clock.standing_still():
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.09)
    assert not outer.expired
    assert not inner.expired
    assert clock.paused_s == pytest.approx(0.3)


@in_skipped_time
async def test_what_is_left_of_a_limit_runs_on_after_a_pause():
    clock = RunningTime()
    limit = clock.limit(0.1)

    async def run():
        async with limit:
            await asyncio.sleep(0.04)
            with clock.standing_still():
                await asyncio.sleep(0.2)
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        await run()
    assert limit.expired
    assert now() == pytest.approx(0.1 + 0.2)


async def test_a_time_out_of_anothers_is_told_apart():
    limit = RunningTime().limit(30)

    async def run():
        async with limit:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await run()
    assert not limit.expired


@in_skipped_time
async def test_a_trial_that_is_cancelled_while_it_waits_leaves_at_once():
    clock = RunningTime()

    async def wait():
        async with clock.limit(30):
            with clock.standing_still():
                await asyncio.sleep(30)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert now() == pytest.approx(0.01)


@in_skipped_time
async def test_seconds_that_are_given_back_are_added_to_every_limit_that_has_not_run_out() -> None:
    time = RunningTime()
    short, long = time.limit(0.05), time.limit(0.1)

    async def run():
        async with long:
            with pytest.raises(TimeoutError):
                async with short:
                    await asyncio.sleep(1)
            assert now() == pytest.approx(0.05)
            time.give_back(0.2)
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError):
        await run()
    assert long.expired
    assert short.expired
    assert now() == pytest.approx(0.1 + 0.2)
    assert time.paused_s == 0.2
