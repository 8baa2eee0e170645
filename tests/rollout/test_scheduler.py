"""The state machine of a step."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from components.rollout import Finish, FinishReason, Launch, Plan, StepScheduler, Tail, Wait


def plan(**changes):
    numbers = {
        "group": 1,
        "oversample": 0.25,
        "concurrency": 100,
        "starts_per_s": 1e9,
        "max_attempts": 2,
        "max_fault_share": 1.0,
        "max_rejected_share": 1.0,
        "tail": Tail.CANCEL,
    }
    batch = changes.pop("batch", 8)
    return Plan.of(batch, **(numbers | changes))


def launch_all(scheduler, now=0.0):
    launches = []
    while isinstance(action := scheduler.next(now), Launch):
        launches.append(action)
    return launches, action


@pytest.mark.parametrize(
    ("batch", "oversample", "target"), [(512, 0.09375, 560), (64, 0.09375, 70), (8, 0, 8), (3, 0.1, 4)]
)
def test_one_plus_varsigma_times_b_trials_are_launched(batch, oversample, target):
    scheduler = StepScheduler(plan(batch=batch, oversample=oversample, concurrency=10_000), 10_000, 0.0)
    launches, action = launch_all(scheduler)
    assert len(launches) == target
    assert action == Wait(None)
    assert [launch.task for launch in launches] == list(range(target))


def test_the_step_is_over_once_b_have_completed_and_later_ones_are_not_admitted():
    scheduler = StepScheduler(plan(), 100, 0.0)
    launches, _ = launch_all(scheduler)
    assert [scheduler.completed(launch) for launch in launches] == [True] * 8 + [False] * 2
    assert scheduler.next(0.0) == Finish(FinishReason.FULL)
    assert (scheduler.admitted, scheduler.cancelled) == (8, 2)


def test_a_fault_is_launched_again_and_then_replaced_by_another_task():
    scheduler = StepScheduler(plan(batch=2, oversample=0), 100, 0.0)
    (first, _), _ = launch_all(scheduler)
    scheduler.faulted_by(first)
    assert scheduler.next(0.0) == Launch(0, 2)
    scheduler.faulted_by(Launch(0, 2))
    assert scheduler.next(0.0) == Launch(2, 1)
    assert scheduler.consumed == 3


@pytest.mark.parametrize(("batch", "group", "target"), [(512, 8, 560), (64, 8, 72), (6, 3, 9), (4, 4, 8)])
def test_groups_are_launched_whole_one_task_after_the_other(batch, group, target):
    scheduler = StepScheduler(plan(batch=batch, group=group, oversample=0.09375, concurrency=10_000), 10_000, 0.0)
    launches, _ = launch_all(scheduler)
    assert launches == [Launch(n // group, 1, n % group) for n in range(target)]
    assert scheduler.consumed == target // group


def test_too_many_faults_end_the_step():
    scheduler = StepScheduler(plan(batch=4, oversample=0, max_fault_share=0.5), 100, 0.0)
    for _ in range(3):
        launches, _ = launch_all(scheduler)
        scheduler.faulted_by(launches[-1])
    assert scheduler.next(0.0) == Finish(FinishReason.FAULTS)


@pytest.mark.parametrize(("share", "batch", "allowed"), [(0.02, 8, 1), (0.0, 512, 1), (0.02, 512, 12), (0.3, 8, 3)])
def test_more_rejected_trials_than_their_share_end_the_step_and_one_alone_never_does(share, batch, allowed):
    scheduler = StepScheduler(plan(batch=batch, max_rejected_share=share, concurrency=1_000), 1_000, 0.0)
    alive = []
    for rejected in [True] * allowed + [False, True]:
        launches, action = launch_all(scheduler)
        assert action == Wait(None), "so far, and with a fault of another kind, the step goes on"
        alive += launches
        scheduler.faulted_by(alive.pop(), rejected=rejected)
    assert scheduler.next(0.0) == Finish(FinishReason.REJECTED)


def test_a_supply_that_runs_dry_ends_the_step_when_nothing_is_alive():
    scheduler = StepScheduler(plan(batch=4, oversample=0, max_attempts=1), 4, 0.0)
    launches, _ = launch_all(scheduler)
    scheduler.faulted_by(launches[0])
    assert scheduler.next(0.0) == Wait(None)
    for launch in launches[1:]:
        scheduler.completed(launch)
    assert scheduler.next(0.0) == Finish(FinishReason.EXHAUSTED)


def test_starts_keep_to_the_token_bucket():
    scheduler = StepScheduler(plan(batch=100, oversample=0, starts_per_s=6, concurrency=1_000), 100, 0.0)
    starts, now = [], 0.0
    while len(starts) < 30:
        match scheduler.next(now):
            case Launch():
                starts.append(now)
            case Wait(until):
                assert until > now
                now = until
    assert starts[5] == 0.0
    assert starts[6] == pytest.approx(1 / 6)
    assert starts[29] == pytest.approx(24 / 6)


def test_carried_trials_take_places_of_the_launches_and_start_nothing():
    carried = [Launch(100, 1), Launch(101, 1)]
    scheduler = StepScheduler(plan(tail=Tail.CARRY), 100, 0.0, running=carried)
    launches, _ = launch_all(scheduler)
    assert [launch.task for launch in launches] == list(range(8))
    assert scheduler.alive == {*launches, *carried}
    assert [scheduler.completed(launch) for launch in [*carried, *launches]] == [True] * 8 + [False] * 2
    assert (scheduler.launched, scheduler.resumed, scheduler.carried) == (8, 2, 2)


def test_what_was_passed_over_comes_first_and_what_was_so_for_long_before_it():
    first = [Launch(100, 1), Launch(101, 1, protected=True)]
    scheduler = StepScheduler(plan(), 100, 0.0, first=first)
    launches, _ = launch_all(scheduler)
    assert [launch.task for launch in launches[:3]] == [101, 100, 0]
    assert scheduler.consumed == 8


def test_a_step_waits_for_a_protected_trial_and_launches_nothing_that_has_no_place():
    slow = Launch(100, 1, protected=True)
    scheduler = StepScheduler(plan(), 100, 0.0, first=[slow])
    launches, _ = launch_all(scheduler)
    assert [scheduler.completed(launch) for launch in launches if launch != slow] == [True] * 7 + [False] * 2
    assert scheduler.next(0.0) == Wait(None)
    scheduler.faulted_by(slow)
    again = scheduler.next(0.0)
    assert again == Launch(100, 2, protected=True)
    assert scheduler.completed(again)
    assert scheduler.next(0.0) == Finish(FinishReason.FULL)


def test_a_protected_trial_whose_attempts_are_spent_gives_its_place_back():
    slow = Launch(100, 2, protected=True)
    scheduler = StepScheduler(plan(batch=2, oversample=0), 100, 0.0, first=[slow])
    launch_all(scheduler)
    scheduler.faulted_by(slow)
    launches, _ = launch_all(scheduler)
    assert [launch.task for launch in launches] == [1]


def test_what_a_step_owes_is_what_it_did_not_come_to():
    scheduler = StepScheduler(plan(batch=2, group=3, oversample=0), 100, 0.0, first=[Launch(100, 1, 2)])
    launches, _ = launch_all(scheduler)
    assert len(launches) == 3
    for launch in launches[:2]:
        scheduler.completed(launch)
    scheduler.faulted_by(launches[2])
    assert scheduler.waiting == [Launch(0, 2, 1), Launch(0, 1, 2)]


def test_with_fewer_slots_than_a_batch_carrying_leaves_no_slot_idle():
    few = plan(batch=512, oversample=0.09375, concurrency=128, tail=Tail.CARRY)
    assert few.limit == 512 + 128
    assert plan(batch=512, oversample=0.09375, concurrency=560, tail=Tail.CARRY).limit == 560
    assert plan(batch=512, oversample=0.09375, concurrency=128, tail=Tail.RETRY).limit == 560


class Step(RuleBasedStateMachine):
    """Random events in random order, against the invariants of the module."""

    def __init__(self):
        super().__init__()
        self.begin(1, Tail.CANCEL, 0, 0, 0)

    @initialize(
        group=st.sampled_from([1, 2, 3]),
        tail=st.sampled_from(list(Tail)),
        running=st.integers(0, 3),
        first=st.integers(0, 3),
        protected=st.integers(0, 6),
    )
    def begin(self, group, tail, running, first, protected):
        self.plan = plan(
            batch=6, group=group, oversample=0.4, concurrency=4, starts_per_s=3, max_fault_share=0.8, tail=tail
        )
        self.now = 0.0
        back = [Launch(12 + index, 1, protected=index < protected) for index in range(running + first)]
        self.running, self.first = back[:running], back[running:]
        self.scheduler = StepScheduler(self.plan, 12, self.now, running=self.running, first=self.first)
        self.alive, self.starts, self.ended = list(self.running), [], {}
        self.finish = None

    @rule(after=st.floats(0, 2))
    def ask(self, after):
        self.now += after
        match self.scheduler.next(self.now):
            case Launch() as launch:
                assert launch not in self.ended
                assert self.finish is None
                self.alive.append(launch)
                self.starts.append(self.now)
            case Wait(until):
                assert until is None or until > self.now
                assert until is not None or self.alive
            case Finish() as finish:
                self.finish = self.finish or finish

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), how=st.sampled_from(["completed", "faulted", "over"]))
    def end(self, data, how):
        launch = data.draw(st.sampled_from(self.alive))
        if how == "over" and self.finish is None:
            how = "completed"
        self.alive.remove(launch)
        carry = self.plan.tail is Tail.CARRY
        if how == "completed":
            how = "admitted" if self.scheduler.completed(launch) else "passed over"
        elif how == "faulted":
            self.scheduler.faulted_by(launch)
        else:
            (self.scheduler.carried_by if carry else self.scheduler.cancelled_by)(launch)
            how = "passed over"
        self.ended[launch] = how

    @invariant()
    def every_trial_has_one_outcome(self):
        s = self.scheduler
        assert s.launched + s.resumed == s.admitted + s.cancelled + s.carried + s.faulted + len(s.alive)
        assert s.launched + s.resumed == len(self.ended) + len(self.alive)
        assert s.alive == set(self.alive)
        passed_over = list(self.ended.values()).count("passed over")
        assert (s.carried, s.cancelled) == ((passed_over, 0) if self.plan.tail is Tail.CARRY else (0, passed_over))

    @invariant()
    def limits_hold(self):
        s = self.scheduler
        assert s.admitted <= self.plan.batch
        assert len(s.alive) <= self.plan.concurrency
        assert len(s.alive) + s.admitted <= self.plan.limit
        admitted = [(launch.task, launch.member) for launch, how in self.ended.items() if how == "admitted"]
        assert len(set(admitted)) == len(admitted)
        assert all(launch.attempt <= self.plan.max_attempts for launch in self.ended)
        assert all(launch.member < self.plan.group for launch in self.ended)
        assert s.consumed <= len({launch.task for launch in [*self.ended, *self.alive]})

    @invariant()
    def a_protected_trial_that_ends_well_is_always_admitted(self):
        passed_over = [launch for launch, how in self.ended.items() if how == "passed over" and launch.protected]
        assert not passed_over or self.finish is not None

    @invariant()
    def nothing_that_was_passed_over_is_forgotten(self):
        known = {(launch.task, launch.member) for launch in [*self.ended, *self.alive, *self.scheduler.waiting]}
        assert {(launch.task, launch.member) for launch in self.first} <= known

    @invariant()
    def starts_are_paced(self):
        for first, start in enumerate(self.starts):
            within = len(self.starts) - first
            assert within <= 3 + 3 * (self.starts[-1] - start) + 1e-6

    @invariant()
    def a_full_batch_is_never_missed(self):
        if self.scheduler.admitted == self.plan.batch:
            assert self.scheduler.next(self.now) == Finish(FinishReason.FULL)


TestStep = Step.TestCase
TestStep.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
