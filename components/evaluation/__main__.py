"""`python -m components.evaluation BEFORE AFTER`: is the second checkpoint better than the first?

    python -m components.evaluation var/store/campaigns/miniature-s1/evaluate/{sft,leg-3}/trials

Both are folders of trials as evaluations keep them in the store. Prints the comparison, task by task where they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from components.artifacts import checked
from components.errors import LongshellError
from components.evaluation.compare import compare, describe, rates
from components.rollout import load_batch

EXIT_WORSE, EXIT_REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0 unless the second is worse (1) or they cannot be compared (2)."""
    parser = argparse.ArgumentParser(prog="python -m components.evaluation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path, help="folder of an evaluation's trials")
    parser.add_argument("after", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args(argv)
    try:
        found = compare(*(rates(load_batch(checked(folder)).trials) for folder in (arguments.before, arguments.after)))
    except (LongshellError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    print(json.dumps(found.to_json(), indent=1) if arguments.json else describe(found))
    return EXIT_WORSE if found.verdict == "worse" else 0


if __name__ == "__main__":
    sys.exit(main())
