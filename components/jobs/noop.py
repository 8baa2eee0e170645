"""A stage that does nothing: what is left is the cost of the orchestration. Used by `benchmarks.orchestration`."""

from __future__ import annotations

import json
import sys

from components.artifacts import open_store, read_at


def main() -> None:
    """Writes an empty result where the spec says."""
    spec = json.loads(read_at(sys.argv[1]))
    open_store(spec["store"]).put_json(spec["result"], {})


if __name__ == "__main__":
    main()
