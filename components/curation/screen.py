"""Takes out of a folder of tasks, before any of them is run, what may not be trained on whatever it does.

That is what repeats a benchmark, what repeats the tasks that are held out, and what nearly repeats another task of the
folder. Every one that is taken out has a reason that quotes what it repeats.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from components.curation.contamination import Benchmark, contaminations
from components.curation.duplicates import near_duplicates
from components.errors import TaskError
from components.pool import LeftOut

CONTAMINATED, NEAR_DUPLICATE = "contaminated", "near_duplicate"


def screen(
    folder: Path, benchmarks: Sequence[Benchmark], *, jaccard: float, near_duplicate: float | None
) -> list[LeftOut]:
    """Removes such tasks from `folder`.

    Args:
        jaccard: of 5-grams, from which on a task repeats a benchmark's in other words.
        near_duplicate: of the 5-grams of instructions, from which on two tasks are one; None keeps both.

    Raises:
        TaskError: nothing is left.
    """
    tasks = sorted(path for path in folder.iterdir() if path.is_dir())
    found = contaminations(tasks, benchmarks, jaccard)
    refused = [LeftOut(task, CONTAMINATED, "; ".join(map(str, found[task]))) for task in sorted(found)]
    if near_duplicate is not None:
        texts = {task.name: (task / "instruction.md").read_text() for task in tasks if task.name not in found}
        refused += [
            LeftOut(item.task_id, NEAR_DUPLICATE, f"of {item.kept}, Jaccard index {item.jaccard:.3f}")
            for item in near_duplicates(texts, list(texts), near_duplicate)
        ]
    if len(refused) == len(tasks):
        reasons = [f"{each.task}: {each.reason}: {each.detail}" for each in refused[:10]]
        raise TaskError(str(folder), ["no task may be trained on", *reasons])
    for each in refused:
        shutil.rmtree(folder / each.task)
    return refused
