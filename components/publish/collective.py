"""Publishing weights by broadcast: the trainer's rank 0 to every rank of every sampler, bucket after bucket.

Invariants: beyond its own weights this process holds one bucket, which is at least a tensor, and the next tensor: at
most max(`bucket_bytes`, largest tensor) + largest tensor, whatever tensors there are (gloo's threads let go of their
last ones a moment after they were sent); a broken broadcast is given up as a whole, and all but those that are to blame
get all of it again, in the end each by itself; none of them resumes in between (see `barrier`); what the source raises
is raised, and costs no sampler. What the ranks of a trainer of several processes gather for it is theirs: a tensor, a
few routed experts, or the rest of a layer.

Who is to blame: a sampler that answers with an error, or not in time, what it does by itself; one that is dead; the
only one that complains of what is done together. A break that nobody can be blamed for is tried again once, for all;
after the second each is served by itself, in a group of its own: then it can only be that one.

A group lives for one attempt. Making it costs milliseconds with gloo, and no sampler that was restarted, no trainer
that was, ever meets what is left of an older one.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from torch import Tensor

from components.errors import FaultCause, InfraFault
from components.publish.barrier import Publication, Roll, WeightSource, at_barrier
from components.sampler import GroupAddress, Sampler, TensorSpec
from components.sampler.blocking import in_thread
from components.sampler.weight_group import WeightGroup, open_store

_LEAVE_TIMEOUT_S = 5.0
_SETTLE_S = 0.5
"""Whom a broken collective makes complain complains within this after the first, who may not be its cause."""
_NAMELESS_BREAKS = 2
"""Broadcasts that may break without anybody to blame, before each sampler is served by itself."""

T = TypeVar("T")
Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class CollectivePublisher:
    """Broadcasts from this process.

    Attributes:
        host: address of this process that the samplers reach.
        backend: "gloo" or "nccl".
        bucket_bytes: what is in flight at once, at least one tensor.
    """

    host: str
    backend: str
    bucket_bytes: int
    timeout_s: float

    async def publish(self, samplers: Sequence[Sampler], source: WeightSource, version: int) -> Publication:
        """See `Publisher.publish`."""

        async def transfer(roll: Roll) -> None:
            nameless = 0
            while roll.present and nameless < _NAMELESS_BREAKS:
                before = len(roll.lost)
                try:
                    await self._attempt(roll, source, version)
                    return
                except _Broke as broke:
                    await _blame(roll, broke)
                nameless += len(roll.lost) == before
            await self._one_by_one(roll, source, version)

        return await at_barrier(samplers, version, self.timeout_s, transfer)

    async def _attempt(self, roll: Roll, source: WeightSource, version: int) -> None:
        """One group, one broadcast of everything to all that are present; whom it could not serve it strikes off.

        Raises:
            _Broke: those that are left did not get all of it.
        """
        ranks = await roll.each(lambda sampler: sampler.ranks())
        if not ranks:
            return
        samplers, size, timeout_s = roll.present, 1 + sum(ranks.values()), roll.allowance_s()
        store = open_store(self.host, size, timeout_s)
        address = GroupAddress(f"longshell-{uuid.uuid4().hex}", self.host, store.port, size, self.backend)
        first = dict(zip(ranks, accumulate(ranks.values(), initial=1), strict=False))
        joins = {place: sampler.join_group(address, first[place]) for place, sampler in samplers.items()}
        own = in_thread(lambda: WeightGroup(address, 0, timeout_s=timeout_s, store=store))
        group = await _together(own, joins, timeout_s)
        try:
            await roll.each(lambda sampler: sampler.begin_update())
            if len(roll.present) < len(samplers):
                raise _Broke({}, None)
            until = time.monotonic() + roll.allowance_s()
            for bucket, last in buckets(source.stream_hf(), self.bucket_bytes):
                await _send(group, address.name, samplers, bucket, version, last, until - time.monotonic())
                bucket.clear()  # before the next is filled
            await roll.each(lambda sampler: sampler.end_update(version))
        finally:
            group.close()
            await asyncio.gather(*(_leave(sampler, address.name) for sampler in samplers.values()))

    async def _one_by_one(self, roll: Roll, source: WeightSource, version: int) -> None:
        """Serves each in a group of its own and in an even part of the time; those that it cannot serve are struck."""
        present = roll.present
        for left, (place, sampler) in zip(range(len(present), 0, -1), present.items(), strict=True):
            alone = Roll([sampler], time.monotonic() + roll.allowance_s() / left)
            try:
                await self._attempt(alone, source, version)
            except _Broke as broke:
                alone.lost.setdefault(0, broke.fault)
            if alone.lost:
                roll.lose(place, alone.lost[0])


class _Broke(Exception):
    """Something that is done together did not come about.

    Attributes:
        said: samplers (by their place) that complained, or that alone were not ready in time.
        own: what the trainer's end of the group says of it.
    """

    def __init__(self, said: Mapping[int, InfraFault], own: InfraFault | None) -> None:
        super().__init__(said, own)
        self.said = said
        self.own = own

    @property
    def fault(self) -> InfraFault:
        """Of a single sampler: why it was not served."""
        late = InfraFault(FaultCause.SAMPLER, "the broadcast did not end in its time")
        return next(iter(self.said.values()), self.own or late)


async def _blame(roll: Roll, broke: _Broke) -> None:
    """Strikes off who broke it, as far as that can be told: who is dead, or else who alone complained."""
    before = len(roll.lost)
    await roll.each(_require_life)
    if len(roll.lost) == before and len(broke.said) == 1:
        roll.lost.update(broke.said)


async def _send(
    group: WeightGroup,
    name: str,
    samplers: Mapping[int, Sampler],
    bucket: Bucket,
    version: int,
    last: bool,
    limit_s: float,
) -> None:
    specs = [TensorSpec(key, str(x.dtype).removeprefix("torch."), tuple(x.shape)) for key, x in bucket]
    receiving = {place: sampler.receive(specs, name, version, last=last) for place, sampler in samplers.items()}
    await _together(in_thread(lambda: group.broadcast([tensor for _, tensor in bucket])), receiving, limit_s)


def buckets(tensors: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[tuple[Bucket, bool]]:
    """Cuts a stream of tensors into buckets of at most `limit` bytes, or of one tensor. The last is marked."""
    bucket: Bucket = []
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > limit:
            yield bucket, False
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    yield bucket, True


async def _together(own: Coroutine[Any, Any, T], calls: Mapping[int, Coroutine[Any, Any, None]], limit_s: float) -> T:
    """What `own` returns when all samplers have done their part of it; the first that fails ends it for all.

    Raises:
        _Broke: one failed, or not all were ready in time.
    """
    mine = asyncio.ensure_future(own)
    tasks = {place: asyncio.ensure_future(call) for place, call in calls.items()}
    everyone = {mine, *tasks.values()}
    try:
        done, waiting = await asyncio.wait(everyone, timeout=max(0.0, limit_s), return_when=asyncio.FIRST_EXCEPTION)
        failed = any(task.exception() for task in done)
        if not waiting and not failed:
            return mine.result()
        if waiting and failed:
            await asyncio.wait(waiting, timeout=_SETTLE_S)
        said = {place: fault for place, task in tasks.items() if (fault := _fault_of(task)) is not None}
        if mine in done and not failed:  # the group did its work
            late = InfraFault(FaultCause.SAMPLER, "did not take part in the broadcast in time")
            said = {place: late for place, task in tasks.items() if not task.done()}
        raise _Broke(said, _fault_of(mine))
    finally:
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


def _fault_of(task: asyncio.Task[Any]) -> InfraFault | None:
    """How a call has failed, if it has; what is no fault of a sampler is raised."""
    error = task.exception() if task.done() else None
    if error is not None and not isinstance(error, InfraFault):
        raise error
    return error


async def _require_life(sampler: Sampler) -> None:
    if not await sampler.healthy():
        raise InfraFault(FaultCause.SAMPLER, "it died during the publication")


async def _leave(sampler: Sampler, name: str) -> None:
    """As good as it goes: a sampler that is dead or stuck has left in its way."""
    with suppress(InfraFault, TimeoutError):
        async with asyncio.timeout(_LEAVE_TIMEOUT_S):
            await sampler.leave_group(name)
