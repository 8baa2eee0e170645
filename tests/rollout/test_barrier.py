"""No turn is drawn across a barrier."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from components.harness import RunningTime
from components.rollout import Barrier
from tests.waiting import in_skipped_time


@in_skipped_time
async def test_closing_waits_for_the_draws_in_flight_and_holds_the_next_ones():
    barrier, log, release = Barrier(), [], asyncio.Event()

    async def trial():
        for _ in range(2):
            async with barrier.draw(RunningTime()):
                log.append(barrier.version)
                await release.wait()

    running = asyncio.create_task(trial())
    await asyncio.sleep(0)
    assert log == []
    barrier.open(3)
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(barrier.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    release.set()
    await closing
    await asyncio.sleep(0.01)
    assert log == [3]
    barrier.open(4)
    await running
    assert log == [3, 4]


@in_skipped_time
async def test_waiting_at_it_costs_a_trial_none_of_its_time():
    barrier, clock = Barrier(), RunningTime()

    async def trial():
        async with clock.limit(0.05), barrier.draw(clock):
            return barrier.version

    running = asyncio.create_task(trial())
    await asyncio.sleep(0.15)
    barrier.open(1)
    assert await running == 1


async def test_a_draw_that_fails_or_is_cancelled_does_not_hold_the_barrier():
    barrier = Barrier()
    barrier.open(0)

    async def trial():
        async with barrier.draw(RunningTime()):
            await asyncio.sleep(30)

    running = asyncio.create_task(trial())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(1):
        await barrier.close()


@settings(max_examples=30, deadline=None)
@given(
    trials=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=5),
    open_for=st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_no_draw_ever_spans_two_versions(trials, open_for):
    spans = []

    async def play():
        barrier = Barrier()

        async def trial(draws):
            for ticks in draws:
                async with barrier.draw(RunningTime()):
                    before = barrier.version
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    spans.append((before, barrier.version))

        running = [asyncio.create_task(trial(draws)) for draws in trials]
        for version, ticks in enumerate(open_for):
            barrier.open(version)
            for _ in range(ticks):
                await asyncio.sleep(0)
            await barrier.close()
        barrier.open(len(open_for))
        await asyncio.gather(*running)

    asyncio.run(play())
    assert len(spans) == sum(map(len, trials))
    assert all(before == after for before, after in spans)
