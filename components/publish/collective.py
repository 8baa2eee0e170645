"""Publishing weights by broadcast: the trainer's rank 0 to every rank of every sampler, bucket after bucket.

Invariants: beyond its own weights the trainer holds one bucket, which is at least a tensor, and the next tensor: at
most max(`bucket_bytes`, largest tensor) + largest tensor, whatever tensors there are (gloo's threads let go of their
last ones a moment after they were sent); a broken broadcast is given up as a whole, and those that still answer get all
of it again; none of them resumes in between (see `barrier`).

A group lives for one attempt. Making it costs milliseconds with gloo, and no sampler that was restarted, no trainer
that was, ever meets what is left of an older one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from components.errors import FaultCause, InfraFault
from components.publish.barrier import Publication, Roll, WeightSource, at_barrier
from components.sampler import GroupAddress, Sampler, TensorSpec
from components.sampler.blocking import in_thread
from components.sampler.weight_group import WeightGroup, open_store

_LEAVE_TIMEOUT_S = 5.0

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
            # Each failed attempt costs half of the time that is left, and as a rule a sampler.
            for _ in range(len(samplers) + 1):
                if not roll.present:
                    return
                try:
                    async with asyncio.timeout(roll.allowance_s()):
                        await self._attempt(roll, source, version)
                    return
                except (InfraFault, TimeoutError) as error:
                    if isinstance(error, InfraFault) and error.cause is not FaultCause.SAMPLER:
                        raise  # the source's own: no sampler is lost by it
                    failure: Exception = error
                await roll.each(_require_life)
            for place in roll.present:
                roll.lose(place, failure)

        return await at_barrier(samplers, version, self.timeout_s, transfer)

    async def _attempt(self, roll: Roll, source: WeightSource, version: int) -> None:
        """One group, one broadcast of everything to all that are present."""
        samplers = list(roll.present.values())
        ranks = await _together(*(sampler.ranks() for sampler in samplers))
        size, timeout_s = 1 + sum(ranks), roll.allowance_s()
        store = open_store(self.host, size, timeout_s)
        address = GroupAddress(f"longshell-{uuid.uuid4().hex}", self.host, store.port, size, self.backend)
        first = [1 + sum(ranks[:place]) for place in range(len(ranks))]
        joins = [sampler.join_group(address, rank) for sampler, rank in zip(samplers, first, strict=True)]
        own = in_thread(lambda: WeightGroup(address, 0, timeout_s=timeout_s, store=store))
        group, *_ = await _together(own, *joins)
        assert group is not None
        try:
            await _together(*(sampler.begin_update() for sampler in samplers))
            for bucket, last in buckets(source.stream_hf(), self.bucket_bytes):
                await _send(group, address.name, samplers, bucket, version, last)
                bucket.clear()  # before the next is filled
            await _together(*(sampler.end_update(version) for sampler in samplers))
        finally:
            group.close()
            await asyncio.gather(*(_leave(sampler, address.name) for sampler in samplers))


async def _send(
    group: WeightGroup, name: str, samplers: Sequence[Sampler], bucket: Bucket, version: int, last: bool
) -> None:
    specs = [TensorSpec(key, str(x.dtype).removeprefix("torch."), tuple(x.shape)) for key, x in bucket]
    receiving = [sampler.receive(specs, name, version, last=last) for sampler in samplers]
    await _together(in_thread(lambda: group.broadcast([tensor for _, tensor in bucket])), *receiving)


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


async def _together(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all calls; the first that fails ends the others and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _require_life(sampler: Sampler) -> None:
    if not await sampler.healthy():
        raise InfraFault(FaultCause.SAMPLER, "it died during the publication")


async def _leave(sampler: Sampler, name: str) -> None:
    """As good as it goes: a sampler that is dead or stuck has left in its way."""
    with suppress(InfraFault, TimeoutError):
        async with asyncio.timeout(_LEAVE_TIMEOUT_S):
            await sampler.leave_group(name)
