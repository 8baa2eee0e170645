"""The folder of a run: the grown pool, and beside it, hidden, what a run needs that goes on.

Invariants: a folder holds one run: one pool, one configuration, one seed; any other is refused. The pool that is grown
is never written to.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from components.config import SynthesisConfig
from components.errors import TaskError
from components.pool import Pool, import_tasks, index_folder
from components.pool.index import INDEX
from components.synthesis.report import RoundReport

STATE = ".synthesis"
RECIPE, PROPOSALS = "recipe.json", "proposals.jsonl"
VERSION = 1
"""Changes when the same pool, configuration and seed would give other tasks."""


def open_run(source: Path, folder: Path, config: SynthesisConfig, seed: int) -> Pool:
    """Begins the run in `folder`, or finds it begun; gives the pool that is grown.

    Args:
        source: a folder of Harbor task directories. Without an index its usable tasks are copied into the run's state.

    Raises:
        TaskError: there is no usable task, or `folder` holds something else than this run.
    """
    state = folder / STATE
    if (source / INDEX).is_file():
        pool = Pool(source)
    else:
        state.mkdir(parents=True, exist_ok=True)
        import_tasks([source], state / "roots")
        pool = index_folder(state / "roots")
    tasks = hashlib.sha256("".join(sorted(f"{ref.task_id} {ref.digest}\n" for ref in pool.refs)).encode()).hexdigest()
    recipe = {"version": VERSION, "pool": tasks, "seed": seed, **config.model_dump(mode="json")}
    state.mkdir(parents=True, exist_ok=True)
    path = state / RECIPE
    if not path.exists():
        if found := [each.name for each in folder.iterdir() if each.name != STATE]:
            raise TaskError(str(folder), [f"is not empty ({', '.join(sorted(found)[:3])}) and holds no run"])
        _write(path, [json.dumps(recipe)])
    elif (found_recipe := _read(path)) != recipe:
        differ = [
            f"{key}: {found_recipe.get(key)} there, {recipe.get(key)} here"
            for key in sorted({*recipe, *found_recipe})
            if found_recipe.get(key) != recipe.get(key)
        ]
        raise TaskError(str(folder), ["holds another run", *differ])
    return pool


def tell(folder: Path, reports: Iterable[RoundReport]) -> None:
    """Writes down what became of every proposal, one JSON line each."""
    lines = [json.dumps({"round": report.round, **fate.to_json()}) for report in reports for fate in report.fates]
    _write(folder / STATE / PROPOSALS, lines)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise TaskError(str(path), [f"cannot be read: {error}"]) from error


def _write(path: Path, lines: Iterable[str]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
