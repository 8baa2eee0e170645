"""Which replica serves, which one is started again, and where a trajectory draws: a state machine without I/O.

What happens is told by methods, with the time; what is to be done is asked for with `due`. Nothing here waits.

    DOWN ──due: Start──► STARTING ──ready──► BEHIND ──due: Update──► UPDATING ──updated──► SERVING
      ▲                                        │ ▲                                           │
      │                                        └─┴────────────── hold, release ──────────────┘
      └── failed (GONE instead, when its restarts are used up) ── any of them

Invariants: a trajectory is given only replicas that serve the current version, never while a publication is under way,
and the same one as long as that one lives and the version stays; a report on an earlier life of a replica changes
nothing; no replica is started more than 1 + `max_restarts` times. (Design 6: liveness.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

FIRST_VERSION = 0
"""Of the checkpoint that every replica is started with."""


class State(StrEnum):
    """How a replica stands."""

    DOWN = "down"
    STARTING = "starting"
    BEHIND = "behind"
    UPDATING = "updating"
    SERVING = "serving"
    GONE = "gone"


RUNNING = (State.BEHIND, State.UPDATING, State.SERVING)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a replica is given up, and when all are (`components.config.HealthConfig`, `SamplerConfig`)."""

    grace_s: float
    period_s: float
    deadline_s: float
    max_restarts: int
    min_healthy: int


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a replica: its place in the fleet, and the number of its start, from 1."""

    place: int
    start: int


@dataclass(frozen=True, slots=True)
class Start:
    """A replica is to be started; what is left of an earlier life is to be ended first."""

    life: Life


@dataclass(frozen=True, slots=True)
class Update:
    """A replica is to load the current version from its folder."""

    life: Life
    version: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A replica is to be asked whether it answers."""

    life: Life


Action = Start | Update | Probe


@dataclass(slots=True)
class _Replica:
    state: State = State.DOWN
    starts: int = 0
    version: int = FIRST_VERSION
    ready_at: float = 0.0
    answered_at: float = 0.0
    probe_at: float = 0.0
    why: str = ""
    """How its last life ended."""


class Supervision:
    """The state of a fleet of `replicas`, all of which are still to be started."""

    def __init__(self, replicas: int, limits: Limits) -> None:
        self._replicas = [_Replica() for _ in range(replicas)]
        self._limits = limits
        self._sessions: dict[str, Life] = {}
        self.version = FIRST_VERSION
        self.held = False
        """A publication is under way."""
        self.restarts = 0
        self.moves = 0
        """Trajectories whose replica died under them, each time."""
        self._loadable = True
        """Whether the current version lies in a folder, and not in the trainer's memory only."""

    def state(self, place: int) -> State:
        """How the replica at a place stands."""
        return self._replicas[place].state

    def places(self, *states: State) -> list[int]:
        """Places of the replicas that stand so."""
        return [place for place, replica in enumerate(self._replicas) if replica.state in states]

    def lives(self, life: Life) -> bool:
        """Whether this life of a replica goes on, as far as was told."""
        replica = self._replicas[life.place]
        return replica.starts == life.start and replica.state in (State.STARTING, *RUNNING)

    def life(self, place: int) -> Life:
        """The present life of a replica, or its last one."""
        return Life(place, self._replicas[place].starts)

    def due(self, now: float) -> Iterator[Action]:
        """What is to be done, each thing once."""
        for place, replica in enumerate(self._replicas):
            if replica.state is State.DOWN:
                self.restarts += replica.starts > 0
                replica.starts += 1
                replica.state = State.STARTING
                yield Start(Life(place, replica.starts))
            elif replica.state is State.BEHIND and not self.held and self._loadable:
                replica.state = State.UPDATING
                yield Update(Life(place, replica.starts), self.version)
            if replica.state in RUNNING and now >= replica.probe_at:
                replica.probe_at = now + self._limits.period_s
                yield Probe(Life(place, replica.starts))

    def wake_at(self) -> float | None:
        """When the next probe is due; None while nothing runs."""
        return min((replica.probe_at for replica in self._replicas if replica.state in RUNNING), default=None)

    def ready(self, life: Life, now: float) -> None:
        """A start has succeeded."""
        if not self.lives(life):
            return
        replica = self._replicas[life.place]
        replica.version = FIRST_VERSION
        replica.ready_at = replica.answered_at = now
        replica.probe_at = now + self._limits.period_s
        self._rank(replica)

    def updated(self, life: Life, version: int) -> None:
        """An update has succeeded."""
        if not self.lives(life):
            return
        replica = self._replicas[life.place]
        replica.version = version
        self._rank(replica)

    def failed(self, life: Life, why: str) -> None:
        """A replica has ended, could not be started or updated, or is given up."""
        if not self.lives(life):
            return
        replica = self._replicas[life.place]
        again = replica.starts <= self._limits.max_restarts
        replica.state = State.DOWN if again else State.GONE
        replica.why = why

    def answered(self, life: Life, now: float) -> None:
        """A probe was answered."""
        if self.lives(life):
            self._replicas[life.place].answered_at = now

    def silent(self, life: Life, now: float) -> bool:
        """A probe was not answered. Whether the replica is to be given up for it."""
        if not self.lives(life):
            return False
        replica, limits = self._replicas[life.place], self._limits
        return now >= replica.ready_at + limits.grace_s and now - replica.answered_at >= limits.deadline_s

    def hold(self) -> None:
        """A publication begins: nobody draws, and no update begins."""
        self.held = True

    def release(self, version: int, confirmed: Collection[int], *, loadable: bool) -> None:
        """A publication has ended.

        Args:
            confirmed: places that serve `version`; of those that were lost, `failed` is told as well.
            loadable: whether `version` lies in a folder, so that a replica can be brought to it before the next one.
        """
        self.held, self.version, self._loadable = False, version, loadable
        for place in confirmed:
            self._replicas[place].version = version
        for replica in self._replicas:
            if replica.state in (State.BEHIND, State.SERVING):
                self._rank(replica)
        self._sessions.clear()  # Nothing is cached under the new version: trajectories spread anew.

    def assign(self, session: str) -> Life | None:
        """Where a trajectory draws; None while nobody serves. A new one goes where the fewest are."""
        if self.held:
            return None
        before = self._sessions.get(session)
        if before is not None and self._serves(before):
            return before
        serving = self.places(State.SERVING)
        if not serving:
            return None
        self.moves += before is not None
        load = Counter(life.place for name, life in self._sessions.items() if name != session)
        chosen = self.life(min(serving, key=lambda place: (load[place], place)))
        self._sessions[session] = chosen
        return chosen

    def forget(self, session: str) -> None:
        """A trajectory has ended."""
        self._sessions.pop(session, None)

    def load(self) -> dict[int, int]:
        """Trajectories of each replica that serves."""
        load = Counter(life.place for life in self._sessions.values() if self._serves(life))
        return {place: load[place] for place in self.places(State.SERVING)}

    def over(self) -> str | None:
        """Why the fleet can no longer do what it is for; None while it can, or may again."""
        left = len(self._replicas) - len(self.places(State.GONE))
        total, needed = len(self._replicas), self._limits.min_healthy
        if left < needed:
            return f"{left} of {total} replicas are left, {needed} needed (sampler.min_healthy){self.obituary()}"
        stuck = not self.held and not self._loadable and self.version != FIRST_VERSION
        if stuck and not self.places(State.SERVING, State.UPDATING):
            return (
                f"none of {total} replicas serves version {self.version}, which only the next publication could bring "
                f"to those that are started again{self.obituary()}"
            )
        return None

    def obituary(self) -> str:
        """How each replica that has ended did, a paragraph each."""
        told = [
            f"\nreplica {place} ({replica.state}, started {replica.starts} times): {replica.why}"
            for place, replica in enumerate(self._replicas)
            if replica.why
        ]
        return "".join(told)

    def _serves(self, life: Life) -> bool:
        return self.state(life.place) is State.SERVING and self.lives(life)

    def _rank(self, replica: _Replica) -> None:
        replica.state = State.SERVING if replica.version == self.version else State.BEHIND
