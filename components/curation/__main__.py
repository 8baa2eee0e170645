"""`python -m components.curation`: which tasks of a folder may not be trained on, and why.

    python -m components.curation pools/mine --benchmark suites/terminal-bench-2 --benchmark suites/lhtb
    python -m components.curation pools/mine --near-duplicates 0.8 --json

Prints one line a reason, then the counts. A task that carries a benchmark's canary is told without the benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from components.curation.contamination import JACCARD, Benchmark, contaminations, summary
from components.curation.duplicates import near_duplicates
from components.errors import LongshellError, TaskError

EXIT_FOUND, EXIT_REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every task may be trained on, 1 when some may not, 2 when the question makes no sense."""
    arguments = _parser().parse_args(argv)
    try:
        return _report(arguments)
    except (LongshellError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m components.curation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pool", type=Path, help="folder of Harbor task directories")
    parser.add_argument("--benchmark", type=Path, action="append", default=[], help="folder of a benchmark's tasks")
    parser.add_argument(
        "--jaccard", type=float, default=JACCARD, help=f"of 5-grams, from which on reworded ({JACCARD})"
    )
    parser.add_argument("--near-duplicates", type=float, help="Jaccard index from which on two tasks are one")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _report(arguments: argparse.Namespace) -> int:
    tasks = sorted(path.parent for path in arguments.pool.glob("*/instruction.md"))
    if not tasks:
        raise TaskError(str(arguments.pool), ["has no task: no */instruction.md"])
    found = contaminations(tasks, [Benchmark(folder) for folder in arguments.benchmark], arguments.jaccard)
    clean = [task for task in tasks if task.name not in found]
    repeated = []
    if arguments.near_duplicates is not None:
        texts = {task.name: (task / "instruction.md").read_text(encoding="utf-8", errors="replace") for task in clean}
        repeated = near_duplicates(texts, list(texts), arguments.near_duplicates)
    counts = {"tasks": len(tasks), "contaminated": len(found), "near_duplicates": len(repeated)}
    if arguments.json:
        document = {
            "contaminated": {task: [item.to_json() for item in evidence] for task, evidence in found.items()},
            "near_duplicates": {item.task_id: [item.kept, item.jaccard] for item in repeated},
            "by_benchmark": summary(found),
            "counts": counts,
        }
        print(json.dumps(document, indent=1))
    else:
        for task, evidence in found.items():
            print(*(f"{task}: {item}" for item in evidence), sep="\n")
        for item in repeated:
            print(f"{item.task_id}: near duplicate of {item.kept} (Jaccard {item.jaccard:.3f})")
        print(json.dumps(counts))
    return EXIT_FOUND if found or repeated else 0


if __name__ == "__main__":
    sys.exit(main())
