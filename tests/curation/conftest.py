"""A real backend and small pools of real tasks."""

from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path

import pytest
import pytest_asyncio

from components.config import PoolConfig, SandboxConfig
from components.pool import Pool, Split, generate, index_folder
from components.pool.directory import write_task
from components.sandbox import SandboxBackend, open_backend

LIMITS = SandboxConfig(memory_mb=128, disk_mb=32, pids=64)
BuildPool = Callable[[int], Path]


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(LIMITS, tmp_path / "boxes")
    yield opened
    await opened.close()


@pytest.fixture
def write_pool(tmp_path: Path) -> BuildPool:
    """Writes so many tasks, not yet indexed, so that a test can break some."""

    def write(count: int) -> Path:
        folder = tmp_path / "pool"
        for task in islice(generate(PoolConfig(), Split.TRAIN, seed=3), count):
            write_task(task, folder / task.task_id)
        return folder

    return write


@pytest.fixture
def pool(write_pool: BuildPool) -> Pool:
    return index_folder(write_pool(6))
