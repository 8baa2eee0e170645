"""`python -m tests.jobs.ray_fleet ADDRESS FOLDER`: two replicas on a Ray, for as long as this process lives.

What they were started with goes to FOLDER (`tests/sampler/fake.py`). Prints their URLs when they answer.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import ray

from components.jobs.replicas import RayLauncher
from tests.conformance.launcher_suite import serving, two


async def main(address: str, folder: Path) -> None:
    ray.init(address, log_to_driver=False)
    print(*await two(RayLauncher(serving(folder))), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
