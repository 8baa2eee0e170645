"""A task directory to break."""

from itertools import islice
from pathlib import Path

import pytest

from components.config import PoolConfig
from components.pool import Split, generate
from components.pool.directory import write_task


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    """A sound generated task."""
    task = next(islice(generate(PoolConfig(), Split.TRAIN, seed=1), 1))
    folder = tmp_path / "pool" / task.task_id
    write_task(task, folder)
    return folder
