"""Publishing weights through a folder that trainer and samplers both see.

Invariant: the folder is whole before a sampler is told of it; a sampler that cannot load it keeps its old weights. The
folder is written before the barrier: what that takes is neither a pause of the samplers nor part of their deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.publish.barrier import Publication, Roll, WeightSource, at_barrier
from components.sampler import Sampler
from components.sampler.blocking import in_thread


@dataclass(frozen=True, slots=True)
class DiskPublisher:
    """Writes `folder` anew for each version."""

    folder: Path
    timeout_s: float

    async def publish(self, samplers: Sequence[Sampler], source: WeightSource, version: int) -> Publication:
        """See `Publisher.publish`."""

        await in_thread(lambda: source.save_hf(self.folder))

        async def transfer(roll: Roll) -> None:
            await roll.each(lambda sampler: sampler.update_weights(str(self.folder), version))

        return await at_barrier(samplers, version, self.timeout_s, transfer)
