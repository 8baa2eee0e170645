"""The pool: a folder of task directories and its index, `pool.parquet`.

Invariants: the index appears whole or not at all; training reads it in a seeded order that changes every epoch,
never in the order it is stored in, which is by quality or by birth and would be a curriculum nobody chose; a draw holds
no task twice.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from components.errors import TaskError
from components.pool.task import Task, load_task
from components.records import TaskRef

INDEX = "pool.parquet"
_COLUMNS = {"str": pa.string(), "tuple[str, ...]": pa.list_(pa.string())}
_SCHEMA = pa.schema([(field.name, _COLUMNS[str(field.type)]) for field in fields(TaskRef)])


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where training stands in the pool: tasks passed since the first epoch began. Part of every checkpoint."""

    seed: int
    position: int = 0


class Pool:
    """The tasks of one folder, as indexed.

    Raises:
        TaskError: the folder holds no readable index, or an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refs = _read_index(folder)
        self._by_id = {ref.task_id: ref for ref in self.refs}

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> NoReturn:
        """Raises TypeError, whoever asks: the stored order is by quality or by birth, a curriculum nobody chose."""
        raise TypeError("a pool is not read in the order it is stored in: ask `draw`, which shuffles every epoch anew")

    def load(self, task_id: str) -> Task:
        """The task named `task_id`.

        Raises:
            TaskError: it is not in the index, its directory cannot be used or is not the one that was indexed.
        """
        if task_id not in self._by_id:
            raise TaskError(str(self.folder / task_id), [f"is not in {INDEX}"])
        return load_task(self.folder / task_id).indexed(self._by_id[task_id])

    def permutation(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The order in which epoch `epoch` visits the tasks: each index once."""
        return np.random.default_rng((seed, epoch)).permutation(len(self.refs))

    def draw(self, cursor: Cursor, count: int) -> tuple[list[TaskRef], Cursor]:
        """The next `count` tasks and where the cursor then stands.

        A draw that crosses into the next epoch passes over the tasks it already holds.

        Raises:
            ValueError: the pool has fewer than `count` tasks.
        """
        if count > len(self.refs):
            raise ValueError(f"cannot draw {count} distinct tasks from a pool of {len(self.refs)}")
        drawn: dict[int, None] = {}
        position = cursor.position
        epoch, order = -1, self.permutation(cursor.seed, 0)
        while len(drawn) < count:
            now, offset = divmod(position, len(self.refs))
            if now != epoch:
                epoch, order = now, self.permutation(cursor.seed, now)
            drawn.setdefault(int(order[offset]))
            position += 1
        return [self.refs[index] for index in drawn], Cursor(cursor.seed, position)

    def sample(self, count: int, seed: int) -> list[TaskRef]:
        """A fixed subset, for evaluations that must see the same tasks every time.

        Raises:
            ValueError: the pool has fewer than `count` tasks.
        """
        return self.draw(Cursor(seed), count)[0]


def write_index(folder: Path, refs: Iterable[TaskRef]) -> Pool:
    """Writes the index of `folder` and opens it. Atomic: an interrupted write leaves the old index."""
    rows = [{name: _plain(getattr(ref, name)) for name in _SCHEMA.names} for ref in refs]
    path = folder / INDEX
    temporary = path.with_name(f".{INDEX}.{secrets.token_hex(4)}")
    with temporary.open("wb") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return Pool(folder)


def choose(pool: Pool, folder: Path, *, seed: int, skip: int, count: int) -> Pool:
    """The pool in `folder` of at most `count` tasks of `pool`, in the order of its first epoch, after the first `skip`.

    Into another folder than the pool's own the tasks' directories are copied. Their order in the index tells nothing.

    Raises:
        TaskError: there are no more than `skip` tasks.
    """
    chosen = [pool.refs[number] for number in pool.permutation(seed, 0)[skip : skip + count]]
    if folder != pool.folder:
        shutil.rmtree(folder, ignore_errors=True)
        for ref in chosen:
            shutil.copytree(pool.folder / ref.task_id, folder / ref.task_id, symlinks=True)
        folder.mkdir(exist_ok=True)
    return write_index(folder, chosen)


def index_folder(folder: Path) -> Pool:
    """Loads every task directory of `folder`, in the order of their names, and writes the index.

    Raises:
        TaskError: at least one cannot be used; the problems of all are listed.
    """
    refs, problems = [], []
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            refs.append(load_task(path).ref)
        except TaskError as error:
            problems += [f"{path.name}/{problem}" for problem in error.problems]
    if problems:
        raise TaskError(str(folder), problems)
    return write_index(folder, refs)


def _read_index(folder: Path) -> Sequence[TaskRef]:
    try:
        rows = pq.read_table(folder / INDEX, schema=_SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise TaskError(str(folder), [f"{INDEX}: cannot be read: {error}"]) from error
    if not rows:
        raise TaskError(str(folder), [f"{INDEX}: holds no task"])
    return tuple(TaskRef(**{name: _frozen(value) for name, value in row.items()}) for row in rows)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
