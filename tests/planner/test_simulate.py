"""Tail rules in virtual time, through the scheduler that campaigns run."""

from statistics import mean
from time import process_time

import pytest

from components.planner import Kind, simulate
from components.rollout import Ledger, Outcome, Plan, Tail

KINDS = (Kind("easy", 0.5, 1.5, 0.6), Kind("medium", 0.3, 2.3, 0.6), Kind("hard", 0.2, 3.2, 0.6))
"""Durations that reproduce the paper's 48 cancelled of 561."""


def run(tail: Tail, slots: int = 561, steps: int = 100, max_attempts: int = 1):
    plan = Plan.of(
        512,
        group=1,
        oversample=49 / 512,
        concurrency=slots,
        starts_per_s=1e9,
        max_attempts=max_attempts,
        max_fault_share=1.0,
        max_rejected_share=1.0,
        tail=tail,
    )
    return simulate(plan, KINDS, steps=steps, max_streak=3, seed=1)


def worst_gap(simulation) -> float:
    trained, drawn = simulation.shares(drawn=False), simulation.shares(drawn=True)
    return max(abs(trained[name] - drawn[name]) for name in drawn)


@pytest.fixture(scope="module")
def cancelled():
    return run(Tail.CANCEL)


def test_the_papers_rule_trains_on_fewer_hard_tasks_than_it_draws(cancelled):
    assert cancelled.mean(Outcome.CANCELLED) == pytest.approx(49, abs=0.5)
    assert cancelled.shares(drawn=True)["hard"] == pytest.approx(0.20, abs=0.01)
    assert cancelled.shares(drawn=False)["hard"] == pytest.approx(0.136, abs=0.01)


def test_carrying_the_tail_keeps_the_share_of_every_class_at_little_more_time(cancelled):
    carried = run(Tail.CARRY)
    assert worst_gap(carried) <= 0.01
    assert mean(carried.step_s) <= 1.3 * mean(cancelled.step_s)
    assert carried.mean(Outcome.CANCELLED) == 0
    assert carried.late_share() <= 0.1


def test_launching_the_tail_again_keeps_the_shares_too_and_takes_longer(cancelled):
    retried = run(Tail.RETRY)
    assert worst_gap(retried) <= 0.01
    assert mean(retried.step_s) > 1.3 * mean(cancelled.step_s)


def test_with_few_slots_carrying_leaves_none_idle_until_the_last_admission():
    assert run(Tail.CARRY, slots=128, steps=20).busy_share >= 0.97
    assert run(Tail.CANCEL, slots=128, steps=20).busy_share < 0.95


def test_every_trial_of_a_simulated_step_has_one_row_and_goes_on_where_it_was_carried():
    simulation = run(Tail.CARRY, slots=128, steps=6)
    for before, after in zip(simulation.ledgers, simulation.ledgers[1:], strict=False):
        after.check()
        goes_on = [r.trial_id for r in before.rows if r.outcome in (Outcome.CARRIED, Outcome.CONTINUED)]
        assert goes_on == [row.trial_id for row in after.rows if row.origin == "resumed"]


def test_a_step_of_ten_thousand_trials_has_every_row_and_costs_no_more_a_trial_than_a_small_one():
    def us_a_trial(batch: int) -> float:
        plan = Plan.of(
            batch,
            group=1,
            oversample=0.09375,
            concurrency=batch,
            starts_per_s=1e9,
            max_attempts=1,
            max_fault_share=1.0,
            max_rejected_share=1.0,
            tail=Tail.CARRY,
        )
        started = process_time()
        (ledger,) = simulate(plan, KINDS, steps=1, max_streak=3, seed=1).ledgers
        metrics, again = ledger.metrics(), Ledger.from_records(0, ledger.records())
        took = process_time() - started
        assert again.rows == ledger.rows
        assert (metrics["rollout/launched"], metrics["rollout/admitted"]) == (len(ledger.rows), batch)
        assert metrics["rollout/carried"] == len(ledger.rows) - batch
        return 1e6 * took / len(ledger.rows)

    small = min(us_a_trial(1_000) for _ in range(3))
    assert us_a_trial(10_000) < 5 * small, "ten times as much, if each trial looked at all others"


def test_shares_that_do_not_sum_to_one_are_refused():
    plan = Plan.of(
        2,
        group=1,
        oversample=0,
        concurrency=2,
        starts_per_s=1,
        max_attempts=1,
        max_fault_share=1,
        max_rejected_share=1,
        tail=Tail.CARRY,
    )
    with pytest.raises(ValueError, match=r"sum to 0\.9, not 1"):
        simulate(plan, [Kind("easy", 0.9, 1, 1)], steps=1, max_streak=1)
