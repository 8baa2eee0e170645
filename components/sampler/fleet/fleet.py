"""A fleet of samplers of the same weights, used as one.

Every draw of a trajectory goes to the same replica, where its prefix is cached; when that one dies, to another, which
prefills the whole prompt and returns the routing rows that were asked for, as it does for any prompt it does not know.
Servers are talked to directly: SGLang's router drops the routing fields. Who serves is decided by `Supervision`; this
is its shell.

Invariants: every answer is of the current version; a draw that is lost with its replica is drawn again, and its time is
given back to its trajectory's clock, which stands while nobody serves; when the fleet can no longer do what it is for,
every caller is told so by one `ServiceError`, which says of each replica how it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from components.errors import FaultCause, InfraFault, ServiceError
from components.records import Sampling
from components.sampler.client import SGLangClient
from components.sampler.fleet.launcher import LOOK_S, Launcher, Serving
from components.sampler.fleet.partial import joined, kept, routing_start_after
from components.sampler.fleet.supervision import Action, Life, Limits, Probe, Start, State, Supervision, Update
from components.sampler.geometry import ModelGeometry
from components.sampler.protocol import Generation, GroupAddress, ModelInfo, TensorSpec

T = TypeVar("T")

MAX_ABORTS = 3
"""Times that one answer may be aborted by others before that is a fault: someone keeps pausing our samplers."""


class Clock(Protocol):
    """The clock of a trajectory (`components.harness.RunningTime`)."""

    def standing_still(self) -> AbstractContextManager[None]:
        """Stops it for the time of the context."""
        ...

    def give_back(self, seconds: float) -> None:
        """Takes seconds that have passed for not passed."""
        ...


class Fleet:
    """Replicas of one checkpoint. A `Sampler`; use within one event loop, opened by `open_fleet`.

    Args:
        tell: is given a line for whoever watches the job, each time that a replica ends or serves again.
    """

    def __init__(self, serving: Serving, launcher: Launcher, tell: Callable[[str], None]) -> None:
        config, health = serving.config, serving.config.health
        limits = Limits(health.grace_s, health.period_s, health.deadline_s, config.max_restarts, config.min_healthy)
        self.supervision = Supervision(config.members, limits)
        self._serving = serving
        self._launcher = launcher
        self._tell = tell
        self._geometry = ModelGeometry.read(serving.checkpoint, config.context_tokens)
        self._clients: dict[int, SGLangClient] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._crash: BaseException | None = None
        self._pulse = asyncio.Event()
        self._drawing = 0
        self._clocks: dict[str, Clock] = {}
        self._weights: Path | None = serving.checkpoint
        self._members: dict[int, Life] = {}
        self._abort_marks = 0
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    async def open(self) -> None:
        """Starts every replica.

        Raises:
            ServiceError: one does not start. None is tried again: what fails at first is the configuration as a rule.
        """
        self._spawn(self._supervise())
        places = range(self._serving.config.members)
        while any(self.supervision.state(place) is not State.SERVING for place in places):
            if self._crash is not None:
                raise self._crash
            if told := self.supervision.obituary():
                raise ServiceError(f"the samplers cannot be started:{told}")
            await self._change()

    async def close(self) -> None:
        """Ends every replica that was started here."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._launcher.close()
        for client in self._clients.values():
            await client.close()

    def url(self, place: int) -> str:
        """Where the replica at a place serves."""
        return self._clients[place].url

    @contextmanager
    def trajectory(self, session_id: str, clock: Clock) -> Iterator[None]:
        """For the time of the context a trajectory has a replica and a clock that what it loses is given back to."""
        self._clocks[session_id] = clock
        try:
            yield
        finally:
            del self._clocks[session_id]
            self.supervision.forget(session_id)

    def metrics(self) -> dict[str, float]:
        """How many serve, and what has happened since the last call."""
        now = self._counts + Counter({"restarts": self.supervision.restarts, "moved": self.supervision.moves})
        names = ["restarts", "moved", "continued", *(f"draws/{place}" for place in sorted(self._clients))]
        since = {f"fleet/{name}": float(now[name] - self._told[name]) for name in names}
        self._told = now
        return since | {"fleet/serving": float(len(self.supervision.places(State.SERVING)))}

    async def hold(self) -> dict[int, str]:
        """Begins a publication: nobody draws from here on. Returns the places and URLs that are to be published to.

        Raises whatever error of this program the supervision has ended with.
        """
        self.supervision.hold()
        while self._drawing or self.supervision.places(State.UPDATING):
            if self._crash is not None:  # an update that it ended would be waited for in vain
                raise self._crash
            await self._change()
        places = self.supervision.places(State.BEHIND, State.SERVING)
        self._members = {place: self.supervision.life(place) for place in places}
        return {place: self._clients[place].url for place in places}

    async def release(self, version: int, weights: Path | None, lost: Mapping[int, str]) -> None:
        """Ends a publication: those that have `version` serve, the others are brought to it or started again.

        Args:
            weights: a folder with `version`, which stays as it is until the next `hold`; None when there is none.
            lost: places that were published to in vain, and why.

        Raises:
            ServiceError: too few are left.
        """
        for place, why in lost.items():
            await self._failed(self._members[place], f"was lost while version {version} was published: {why}")
        lives = self.supervision.lives
        confirmed = [place for place, life in self._members.items() if place not in lost and lives(life)]
        self._weights = weights
        self.supervision.release(version, confirmed, loadable=weights is not None)
        self._notify()
        self._require()

    # A `Sampler`.

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        routing_start: int | None = None,
        session_id: str,
    ) -> Generation:
        """See `Sampler.generate`. An answer that this fleet's own `abort_all` or `pause` aborted is returned as one;
        what others aborted is continued (`partial`).

        Raises:
            ServiceError: too few replicas are left.
        """
        mark, pieces = self._abort_marks, tuple[Generation, ...]()
        for _ in range(MAX_ABORTS + 1):
            drawn = [int(token) for piece in pieces for token in piece.output_ids]
            answer = await self._draw(
                session_id,
                [*prompt_ids, *drawn],
                sampling=sampling,
                max_new_tokens=max_new_tokens - len(drawn),
                stop_token_ids=stop_token_ids,
                routing_start=routing_start_after(len(prompt_ids), routing_start, pieces),
            )
            if answer.finish_reason != "abort" or self._abort_marks != mark:
                whole = joined(pieces, answer)
                if whole is not None:
                    return whole
                pieces = ()
                continue
            self._counts["continued"] += 1
            pieces = kept(pieces, answer)
            if sum(len(piece.output_ids) for piece in pieces) >= max_new_tokens:
                pieces = ()
        raise InfraFault(FaultCause.SAMPLER, f"an answer was aborted {MAX_ABORTS + 1} times, and nobody here asked")

    async def abort_all(self) -> None:
        self._abort_marks += 1
        await self._each(lambda client: client.abort_all())

    async def pause(self) -> None:
        self._abort_marks += 1
        await self._each(lambda client: client.pause())

    async def resume(self) -> None:
        await self._each(lambda client: client.resume())

    async def flush_cache(self) -> None:
        await self._each(lambda client: client.flush_cache())

    async def update_weights(self, path: str, version: int) -> None:
        await self._each(lambda client: client.update_weights(path, version))
        self._weights = Path(path)
        self.supervision.release(version, self.supervision.places(State.SERVING), loadable=True)

    async def ranks(self) -> int:
        return sum(await self._each(lambda client: client.ranks()))

    async def join_group(self, group: GroupAddress, first_rank: int) -> None:
        clients = self._present()
        sizes = await asyncio.gather(*(client.ranks() for client in clients))
        firsts = [first_rank + sum(sizes[:place]) for place in range(len(sizes))]
        await asyncio.gather(*(c.join_group(group, first) for c, first in zip(clients, firsts, strict=True)))

    async def leave_group(self, name: str) -> None:
        await self._each(lambda client: client.leave_group(name))

    async def begin_update(self) -> None:
        await self._each(lambda client: client.begin_update())

    async def receive(self, tensors: Sequence[TensorSpec], group: str, version: int, *, last: bool) -> None:
        await self._each(lambda client: client.receive(tensors, group, version, last=last))

    async def end_update(self, version: int) -> None:
        await self._each(lambda client: client.end_update(version))
        self._weights = None
        self.supervision.release(version, self.supervision.places(State.SERVING), loadable=False)

    async def info(self) -> ModelInfo:
        served = await self._each(lambda client: client.info())
        if len({info.weight_version for info in served}) > 1:
            versions = sorted(info.weight_version for info in served)
            raise InfraFault(FaultCause.SAMPLER, f"the replicas serve versions {versions}")
        return served[0]

    async def probe(self, *, routing: bool) -> str:
        """See `SGLangClient.probe`. Returns the version of each, in the order of their places."""
        return " ".join(await self._each(lambda client: client.probe(routing=routing)))

    async def healthy(self) -> bool:
        clients = [self._clients[place] for place in self.supervision.places(State.SERVING)]
        return any(await asyncio.gather(*(client.healthy() for client in clients)))

    # Draws.

    async def _draw(self, session: str, prompt: Sequence[int], **arguments: Any) -> Generation:
        """One request, on another replica whenever the one that it was given to has died."""
        while True:
            life = await self._assigned(session)
            client, started = self._clients[life.place], time.monotonic()
            self._drawing += 1
            try:
                answer = await client.generate(prompt, session_id=session, **arguments)
                self._counts[f"draws/{life.place}"] += 1
                return answer
            except InfraFault as fault:
                if fault.cause is not FaultCause.SAMPLER:
                    raise
                failure, lost_s = fault, time.monotonic() - started
            finally:
                self._drawing -= 1
                self._notify()
            clock = self._clocks.get(session)
            if clock is not None:
                clock.give_back(lost_s)
            with self._standing_still(session):
                await self._end_of(life, client, failure)

    async def _end_of(self, life: Life, client: SGLangClient, failure: InfraFault) -> None:
        """Returns when a replica that failed a request has been found dead; raises the failure if it lives."""
        while self.supervision.lives(life):
            if await client.healthy():
                raise failure
            await asyncio.sleep(LOOK_S)

    async def _assigned(self, session: str) -> Life:
        """Waits, with the trajectory's clock standing, until somebody serves."""
        self._require()
        if (life := self.supervision.assign(session)) is not None:
            return life
        limit_s = self._serving.config.request_timeout_s
        try:
            with self._standing_still(session):
                async with asyncio.timeout(limit_s):
                    while (life := self.supervision.assign(session)) is None:
                        await self._change()
                        self._require()
                    return life
        except TimeoutError:
            raise InfraFault(FaultCause.SAMPLER, f"no replica has served for {limit_s:g} s") from None

    def _standing_still(self, session: str) -> AbstractContextManager[None]:
        clock = self._clocks.get(session)
        return nullcontext() if clock is None else clock.standing_still()

    def _require(self) -> None:
        if self._crash is not None:
            raise self._crash
        if (why := self.supervision.over()) is not None:
            raise ServiceError(f"the samplers are lost: {why}")

    def _present(self) -> list[SGLangClient]:
        self._require()
        return [self._clients[place] for place in self.supervision.places(State.SERVING)]

    async def _each(self, call: Callable[[SGLangClient], Awaitable[T]]) -> list[T]:
        """Asks every replica that serves, at once; what the first says that fails is raised."""
        return await asyncio.gather(*(call(client) for client in self._present()))

    # Supervision.

    async def _supervise(self) -> None:
        while True:
            pulse = self._pulse
            for action in self.supervision.due(time.monotonic()):
                self._spawn(self._do(action))
            wake = self.supervision.wake_at()
            limit_s = None if wake is None else max(0.0, wake - time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await pulse.wait()

    async def _do(self, action: Action) -> None:
        match action:
            case Start(life):
                await self._start(life)
            case Update(life, version):
                await self._update(life, version)
            case Probe(life):
                await self._probe(life)
        self._notify()

    async def _start(self, life: Life) -> None:
        place = life.place
        if place in self._watches:
            self._watches.pop(place).cancel()
        try:
            url = await self._launcher.start(place, life.start)
        except ServiceError as error:
            await self._failed(life, str(error), logged=True)
            return
        if (before := self._clients.get(place)) is not None:
            await before.close()
        config = self._serving.config
        self._clients[place] = SGLangClient(
            url,
            model=self._geometry,
            request_timeout_s=config.request_timeout_s,
            dp=1 if config.sglang is None else config.sglang.dp,
            keep_aborted=True,
        )
        self.supervision.ready(life, time.monotonic())
        self._watches[place] = self._spawn(self._watch(life))
        if life.start > 1:
            self._tell(f"sampler {place} runs again at {url}")

    async def _update(self, life: Life, version: int) -> None:
        client, weights = self._clients[life.place], self._weights
        assert weights is not None, "an update is due only while there is a folder"
        try:
            await client.pause()
            await client.flush_cache()
            await client.update_weights(str(weights), version)
            await client.resume()
        except InfraFault as fault:
            await self._failed(life, f"cannot be brought to version {version}: {fault}")
        else:
            self.supervision.updated(life, version)

    async def _probe(self, life: Life) -> None:
        if await self._clients[life.place].healthy():
            self.supervision.answered(life, time.monotonic())
        elif self.supervision.silent(life, time.monotonic()):
            limit_s = self._serving.config.health.deadline_s
            await self._failed(life, f"has not answered for {limit_s:g} s (sampler.health.deadline_s)")

    async def _watch(self, life: Life) -> None:
        await self._failed(life, await self._launcher.ended(life.place))

    async def _failed(self, life: Life, why: str, *, logged: bool = False) -> None:
        """Strikes a replica off. `logged` says that the end of its log is in `why` already."""
        if not logged and (words := await self._launcher.last_words(life.place)):
            why = f"{why}; its last words:\n{words}"
        if not self.supervision.lives(life):
            return
        self.supervision.failed(life, why)
        allowed = self._serving.config.max_restarts
        if self.supervision.state(life.place) is State.GONE:
            self._tell(f"sampler {life.place} {why}\nIts {allowed} restarts (sampler.max_restarts) are used up")
            self._spawn(self._launcher.stop(life.place))
        else:
            self._tell(f"sampler {life.place} {why}\nIt is started again ({life.start} of {allowed} times)")
        self._notify()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash = error
            self._notify()

    def _notify(self) -> None:
        """Wakes whoever waits for a change."""
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def _change(self) -> None:
        await self._pulse.wait()


@asynccontextmanager
async def open_fleet(serving: Serving, launcher: Launcher, tell: Callable[[str], None]) -> AsyncIterator[Fleet]:
    """A fleet whose replicas all serve, for the time of the context.

    Raises:
        CheckpointError: the checkpoint is no model folder; nothing was started.
        ServiceError: a replica does not start.
    """
    fleet = Fleet(serving, launcher, tell)
    try:
        await fleet.open()
        yield fleet
    finally:
        await fleet.close()
