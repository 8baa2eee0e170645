"""`python -m tests.curation.curator FOLDER`: the curation stage over `FOLDER/train` and `FOLDER/heldout`, without Ray.

A process of its own, so that a test can kill it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from components.artifacts import LocalStore
from components.config import load
from components.jobs.curate import stage
from components.jobs.job import Job
from tests.jobs.conftest import MINIATURE, SMALL


def main(folder: Path) -> None:
    sources = {
        "train": [str(folder / "train")],
        "heldout": [str(folder / "heldout")],
        "benchmarks": [str(folder / "benchmark")],
        "jaccard": 0.5,
        "near_duplicate": 0.9,
    }
    config = load(
        MINIATURE, [*SMALL, "pool.train_tasks=999", "ppo.critic.warmup=null", f"pool.imported={json.dumps(sources)}"]
    )
    (folder / "job").mkdir(exist_ok=True)
    result = stage(Job("curate", "c", 0, config, {}, LocalStore(folder / "store"), folder / "job"))
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
