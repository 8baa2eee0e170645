"""The state machine of a fleet: invariants under whatever order of events, and the rules one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from components.sampler.fleet.supervision import Life, Limits, Probe, Start, State, Supervision, Update

LIMITS = Limits(grace_s=20, period_s=5, deadline_s=10, max_restarts=2, min_healthy=1)
REPLICAS = 3
SESSIONS = st.sampled_from([f"trial-{number}" for number in range(6)])
CHOICE = st.integers(0, 10_000)


class AnyOrder(RuleBasedStateMachine):
    """Tells a fleet of three whatever may happen, and keeps a model of what is true of each life."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Supervision(REPLICAS, LIMITS)
        self.now = 0.0
        self.starting: list[Life] = []
        self.updating: list[tuple[Life, int]] = []
        self.running: dict[Life, int] = {}
        """From lives to the version that they serve."""
        self.past: list[Life] = []
        self.starts: Counter[int] = Counter()
        self.at: dict[str, Life] = {}
        self.version = 0

    @rule(seconds=st.floats(0, 30))
    def does_what_is_due(self, seconds: float) -> None:
        self.now += seconds
        for action in self.fleet.due(self.now):
            if isinstance(action, Start):
                self.starts[action.life.place] += 1
                assert action.life.start == self.starts[action.life.place] <= 1 + LIMITS.max_restarts
                assert not any(life.place == action.life.place for life in [*self.running, *self.starting])
                self.starting.append(action.life)
            elif isinstance(action, Update):
                assert not self.fleet.held
                assert action.version == self.version != self.running[action.life]
                self.updating.append((action.life, action.version))
            else:
                assert action.life in self.running
        assert not [a for a in self.fleet.due(self.now) if isinstance(a, Start | Update)], "each thing once"

    @precondition(lambda self: self.starting)
    @rule(which=CHOICE, well=st.booleans())
    def a_start_ends(self, which: int, well: bool) -> None:
        life = self.starting.pop(which % len(self.starting))
        if well:
            self.running[life] = 0
            self.fleet.ready(life, self.now)
        else:
            self.past.append(life)
            self.fleet.failed(life, "it did not start")

    @precondition(lambda self: self.updating)
    @rule(which=CHOICE)
    def an_update_ends(self, which: int) -> None:
        life, version = self.updating.pop(which % len(self.updating))
        if life in self.running:
            self.running[life] = version
        self.fleet.updated(life, version)

    @precondition(lambda self: self.running)
    @rule(which=CHOICE)
    def a_replica_dies(self, which: int) -> None:
        life = sorted(self.running, key=lambda life: (life.place, life.start))[which % len(self.running)]
        del self.running[life]
        self.past.append(life)
        self.fleet.failed(life, "killed")

    @precondition(lambda self: self.past)
    @rule(which=CHOICE)
    def a_death_is_told_again(self, which: int) -> None:
        life = self.past[which % len(self.past)]
        before = [self.fleet.state(place) for place in range(REPLICAS)]
        self.fleet.failed(life, "told late")
        self.fleet.ready(life, self.now)
        self.fleet.updated(life, self.version)
        assert [self.fleet.state(place) for place in range(REPLICAS)] == before

    @rule(session=SESSIONS)
    def a_trajectory_draws(self, session: str) -> None:
        serving = [life for life, version in self.running.items() if version == self.version and self.serves(life)]
        given_before, load = self.at.get(session), Counter(life.place for life in self.at.values())
        life = self.fleet.assign(session)
        assert (life is None) == (self.fleet.held or not serving)
        if life is None:
            return
        assert life in serving, "dead, starting, or of other weights"
        if given_before in serving:
            assert life == given_before, "moved without need"
        else:
            load.subtract([given_before.place] if given_before else [])
            assert load[life.place] == min(load[other.place] for other in serving)
        self.at[session] = life

    @rule(session=SESSIONS)
    def a_trajectory_ends(self, session: str) -> None:
        self.fleet.forget(session)
        self.at.pop(session, None)

    @precondition(lambda self: not self.fleet.held and not self.updating)
    @rule()
    def a_publication_begins(self) -> None:
        self.fleet.hold()
        self.members = list(self.running)

    @precondition(lambda self: self.fleet.held)
    @rule(lost=st.sets(st.integers(0, REPLICAS - 1)), loadable=st.booleans())
    def a_publication_ends(self, lost: set[int], loadable: bool) -> None:
        self.version += 1
        confirmed = [life for life in self.members if life in self.running and life.place not in lost]
        for life in self.members:
            if life in self.running and life not in confirmed:
                del self.running[life]
                self.past.append(life)
                self.fleet.failed(life, "lost")
        self.running |= dict.fromkeys(confirmed, self.version)
        self.fleet.release(self.version, [life.place for life in confirmed], loadable=loadable)
        self.at.clear()
        if not loadable and not confirmed:
            assert self.fleet.over(), "nobody could ever serve"

    def serves(self, life: Life) -> bool:
        return life not in [updated for updated, _ in self.updating]

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        for place in range(REPLICAS):
            running = [life for life in self.running if life.place == place]
            known = self.fleet.state(place) in (State.BEHIND, State.UPDATING, State.SERVING)
            assert known == bool(running)
            assert (self.fleet.state(place) is State.GONE) <= (self.starts[place] == 1 + LIMITS.max_restarts)
        gone = len(self.fleet.places(State.GONE))
        if gone > REPLICAS - LIMITS.min_healthy:
            assert self.fleet.over()


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def served(replicas: int = 2, limits: Limits = LIMITS) -> Supervision:
    """A fleet whose replicas all serve."""
    fleet = Supervision(replicas, limits)
    for action in list(fleet.due(0.0)):
        fleet.ready(action.life, 0.0)
    return fleet


def test_new_trajectories_go_where_the_fewest_are_and_stay() -> None:
    fleet = served()
    places = [fleet.assign(name) for name in "abcd"]
    assert [life.place for life in places if life] == [0, 1, 0, 1]
    fleet.forget("b")
    fleet.forget("d")
    assert fleet.assign("e") == Life(1, 1)
    assert fleet.assign("c") == Life(0, 1)
    assert fleet.load() == {0: 2, 1: 1}


def test_a_dead_replica_hands_its_trajectories_over_and_comes_back_with_the_current_version() -> None:
    fleet = served()
    fleet.hold()
    fleet.release(3, [0, 1], loadable=True)
    assert fleet.assign("a") == Life(0, 1)
    fleet.failed(Life(0, 1), "killed")
    assert fleet.assign("a") == Life(1, 1)
    assert fleet.moves == 1
    (start,) = fleet.due(1.0)
    assert start == Start(Life(0, 2))
    fleet.ready(Life(0, 2), 2.0)
    assert fleet.state(0) is State.BEHIND
    (update,) = fleet.due(2.0)
    assert update == Update(Life(0, 2), 3)
    fleet.updated(Life(0, 2), 3)
    assert fleet.state(0) is State.SERVING
    assert fleet.restarts == 1


def test_what_lies_in_the_trainer_only_is_waited_for_until_the_next_publication() -> None:
    fleet = served()
    fleet.hold()
    fleet.release(3, [0, 1], loadable=False)
    fleet.failed(Life(0, 1), "killed")
    assert list(fleet.due(1.0)) == [Start(Life(0, 2))]
    fleet.ready(Life(0, 2), 2.0)
    assert list(fleet.due(2.0)) == []
    assert fleet.over() is None
    fleet.failed(Life(1, 1), "killed, too")
    assert "only the next publication" in (fleet.over() or "")


def test_silence_counts_after_the_grace_and_for_the_length_of_the_deadline() -> None:
    fleet = served(replicas=1, limits=replace(LIMITS, grace_s=20, period_s=5, deadline_s=10))
    life = Life(0, 1)
    assert list(fleet.due(4.9)) == []
    assert list(fleet.due(5.0)) == [Probe(life)]
    assert list(fleet.due(5.0)) == []
    assert fleet.wake_at() == 10.0
    assert not fleet.silent(life, 15.0), "in its grace"
    fleet.answered(life, 18.0)
    assert not fleet.silent(life, 27.0), "it has answered 9 s ago"
    assert fleet.silent(life, 28.0)


@pytest.mark.parametrize(("dead", "over"), [([0], False), ([0, 1], True)])
def test_fewer_than_the_minimum_is_the_end_and_says_how_each_replica_ended(dead: list[int], over: bool) -> None:
    fleet = served(replicas=3, limits=replace(LIMITS, max_restarts=0, min_healthy=2))
    for place in dead:
        fleet.failed(Life(place, 1), f"SIGKILL of {place}\nlast line of {place}")
    told = fleet.over()
    assert (told is not None) is over
    if told is not None:
        assert "1 of 3 replicas are left, 2 needed (sampler.min_healthy)" in told
        assert all(
            f"replica {place} (gone, started 1 times): SIGKILL of {place}\nlast line of {place}" in told
            for place in dead
        )
    assert list(fleet.due(1.0)) == []
