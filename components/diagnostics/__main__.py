"""`python -m components.diagnostics STORE CAMPAIGN`: the diagnosis of a campaign, finished or not, without Prefect."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from components.artifacts import open_store
from components.diagnostics.diagnosis import diagnose
from components.diagnostics.finding import Severity
from components.diagnostics.report import render
from components.diagnostics.stored import read
from components.diagnostics.trajectory import chosen, rows, section
from components.errors import LongshellError

EXIT_RED, EXIT_REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0 unless the verdict is red (1) or there is nothing to diagnose (2)."""
    parser = argparse.ArgumentParser(prog="python -m components.diagnostics", description=__doc__)
    parser.add_argument("store", help="folder or URL of the artifact store, e.g. var/store")
    parser.add_argument("campaign", help="its name and seed, e.g. miniature-s1")
    parser.add_argument("--running", action="store_true", help="a leg runs: a last step that is too old is a finding")
    arguments = parser.parse_args(argv)
    try:
        store = open_store(arguments.store)
        records, evaluations = read(store, arguments.campaign)
        worth = chosen(rows(store, arguments.campaign, [int(record["step"]) for record in records]))
    except LongshellError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    now_ms = int(time.time() * 1000) if arguments.running else None
    diagnosis = diagnose(records, evaluations, now_ms=now_ms)
    print(render(f"Diagnosis of {arguments.campaign}", diagnosis, records, evaluations), end="")
    if worth:
        print(
            f"\n{section(worth, {})}\n`python -m components.diagnostics.trajectory {store.url} TRIAL` writes its page."
        )
    return EXIT_RED if diagnosis.severity is Severity.RED else 0


if __name__ == "__main__":
    sys.exit(main())
