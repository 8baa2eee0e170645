"""The barrier at which weights are exchanged: quiesce, transfer, verify, resume (paper Algorithm 3; design 6).

Invariants: no sampler resumes before every sampler that stays has confirmed the version; one that fails or is late at
any point leaves the publication, stays paused, and is reported with its cause; from the first pause the whole ends
within its deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

from components.errors import FaultCause, InfraFault
from components.sampler import Sampler

T = TypeVar("T")


class WeightSource(Protocol):
    """A trainer, as far as publication goes (see `components.trainer.Trainer`)."""

    def save_hf(self, folder: Path) -> None:
        """Writes a Hugging Face folder, atomically."""
        ...

    def stream_hf(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of that folder, one at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a publication.

    Attributes:
        lost: samplers (by their place) that do not serve `version`, and why. They are paused, or dead, and their
            weights may be torn: start them again, or publish to them again, before they generate.
        seconds: from the first pause to the last resume.
    """

    version: int
    lost: Mapping[int, InfraFault]
    seconds: float


class Publisher(Protocol):
    """Brings a trainer's weights to samplers."""

    async def publish(self, samplers: Sequence[Sampler], source: WeightSource, version: int) -> Publication:
        """Exchanges the weights of every sampler; running requests are aborted, caches forgotten.

        What the samplers do wrong is in the result. What `source` raises is raised; no sampler that was paused resumes.
        """
        ...


class Roll:
    """The samplers that still take part."""

    def __init__(self, samplers: Sequence[Sampler], deadline: float) -> None:
        self._samplers = samplers
        self._deadline = deadline
        self.lost: dict[int, InfraFault] = {}

    @property
    def present(self) -> dict[int, Sampler]:
        """Those that stay, by their place."""
        return {place: sampler for place, sampler in enumerate(self._samplers) if place not in self.lost}

    def allowance_s(self) -> float:
        """What the next part may take: half of the time that is left, so that one that hangs leaves the others some."""
        return max(0.0, self._deadline - time.monotonic()) / 2

    def lose(self, place: int, error: Exception) -> None:
        """Strikes a sampler off."""
        late = isinstance(error, TimeoutError)
        detail = "did not answer in its time of the publication" if late else str(error)
        self.lost[place] = error if isinstance(error, InfraFault) else InfraFault(FaultCause.SAMPLER, detail)

    async def each(self, call: Callable[[Sampler], Awaitable[T]]) -> dict[int, T]:
        """What every sampler answers, by its place, called all at once; those that raise or are late are struck off."""
        limit = self.allowance_s()
        answers: dict[int, T] = {}

        async def one(place: int, sampler: Sampler) -> None:
            try:
                async with asyncio.timeout(limit):
                    answers[place] = await call(sampler)
            except (InfraFault, TimeoutError) as error:
                self.lose(place, error)

        await asyncio.gather(*(one(place, sampler) for place, sampler in self.present.items()))
        return {place: answers[place] for place in self.present}


async def at_barrier(
    samplers: Sequence[Sampler], version: int, timeout_s: float, transfer: Callable[[Roll], Awaitable[None]]
) -> Publication:
    """Runs `transfer` between pausing and resuming; it strikes off those that it could not serve."""
    started = time.monotonic()
    roll = Roll(samplers, started + timeout_s)
    await roll.each(_quiesce)
    await transfer(roll)

    async def verify(sampler: Sampler) -> None:
        served = (await sampler.info()).weight_version
        if served != version:
            raise InfraFault(FaultCause.SAMPLER, f"version {version} was published, {served} is served")

    await roll.each(verify)
    await roll.each(lambda sampler: sampler.resume())
    return Publication(version, roll.lost, time.monotonic() - started)


async def _quiesce(sampler: Sampler) -> None:
    await sampler.pause()
    await sampler.flush_cache()
