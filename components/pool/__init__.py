"""Tasks: Harbor directories, the pool that indexes them, and the generator of the miniature's."""

from components.pool.build import build_pool
from components.pool.directory import read_outline
from components.pool.generator import GeneratedTask, Split, generate
from components.pool.imported import LeftOut, import_tasks, shown
from components.pool.index import Cursor, Pool, choose, index_folder, write_index
from components.pool.task import Task, directory_digest, load_task

__all__ = [
    "Cursor",
    "GeneratedTask",
    "LeftOut",
    "Pool",
    "Split",
    "Task",
    "build_pool",
    "choose",
    "directory_digest",
    "generate",
    "import_tasks",
    "index_folder",
    "load_task",
    "read_outline",
    "shown",
    "write_index",
]
