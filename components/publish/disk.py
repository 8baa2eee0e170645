"""Publishing weights through a folder that trainer and samplers both see.

Invariant: when `publish` returns, every sampler answers with `version` and with nothing cached from an older one; when
it raises, the caller must not generate again before a publication succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from components.errors import FaultCause, InfraFault
from components.sampler import Sampler


async def publish(samplers: Sequence[Sampler], folder: Path, version: int) -> None:
    """Loads the Hugging Face checkpoint in `folder` into every sampler and verifies the version that they report.

    Generation is paused (running requests are aborted), caches are flushed, weights are loaded, and generation is
    resumed whether or not loading succeeded.

    Raises:
        InfraFault: a sampler did not answer, refused the weights, or reports another version afterwards.
    """
    await asyncio.gather(*(_publish_one(sampler, folder, version) for sampler in samplers))


async def _publish_one(sampler: Sampler, folder: Path, version: int) -> None:
    await sampler.pause()
    try:
        await sampler.flush_cache()
        await sampler.update_weights(str(folder), version)
    finally:
        await sampler.resume()
    info = await sampler.info()
    if info.weight_version != version:
        detail = f"published version {version}, sampler reports {info.weight_version}"
        raise InfraFault(FaultCause.SAMPLER, detail)
