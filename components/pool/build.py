"""Writes whole pools of generated tasks.

Invariant: a pool folder appears whole, by one rename, or not at all. Building the same pool again is free; building
another one over it is refused.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from components.config import PoolConfig
from components.errors import TaskError
from components.pool.directory import CHECKS_SHA256, write_task
from components.pool.generator import GENERATOR_VERSION, Split, generate
from components.pool.index import Pool, index_folder

RECIPE = "recipe.json"
"""What a generated pool was made from, beside its index."""


def build_pool(config: PoolConfig, split: Split, *, seed: int, count: int, folder: Path, skip: int = 0) -> Pool:
    """Generates `count` tasks of `split` into `folder` and indexes them; opens the pool when it is already there.

    `skip` passes over as many tasks first: two pools of one split and seed share no content when their ranges do not.

    Raises:
        TaskError: `folder` exists and is not this pool.
    """
    bounds = [config.min_subtasks, config.max_subtasks]
    recipe: dict[str, object] = {
        "generator": GENERATOR_VERSION,
        "split": split.value,
        "seed": seed,
        "skip": skip,
        "count": count,
        "checks": CHECKS_SHA256,
    }
    recipe["subtasks"] = bounds
    if folder.exists():
        _require_same(folder, recipe)
        return Pool(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.parent / f".{folder.name}.{os.getpid()}" / folder.name
    shutil.rmtree(building.parent, ignore_errors=True)
    try:
        building.mkdir(parents=True)
        for task in islice(generate(config, split, seed=seed), skip, skip + count):
            write_task(task, building / task.task_id)
        index_folder(building)
        (building / RECIPE).write_text(json.dumps(recipe))
        building.rename(folder)
    finally:
        shutil.rmtree(building.parent, ignore_errors=True)
    return Pool(folder)


def _require_same(folder: Path, recipe: Mapping[str, object]) -> None:
    try:
        found = json.loads((folder / RECIPE).read_text())
    except (OSError, ValueError) as error:
        raise TaskError(str(folder), [f"{RECIPE}: not a generated pool: {error}"]) from error
    if found != recipe:
        raise TaskError(str(folder), [f"{RECIPE}: holds another pool: {found}, wanted {recipe}"])
