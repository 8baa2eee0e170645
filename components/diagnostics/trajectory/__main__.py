"""`python -m components.diagnostics.trajectory STORE TRIAL`: one stored trial as a page that any browser shows.

With `--atif`, as an ATIF document, which Harbor's tools and others read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from components.artifacts import existing_store
from components.diagnostics.trajectory.html import html
from components.diagnostics.trajectory.stored import decoder, find
from components.diagnostics.trajectory.view import view
from components.errors import LongshellError
from components.rollout.atif import to_atif, write_whole
from components.tito import BpeTokenizer

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 where there is no such trial, or what is stored of it is damaged."""
    parser = argparse.ArgumentParser(prog="python -m components.diagnostics.trajectory", description=__doc__)
    parser.add_argument("store", help="folder or URL of the artifact store, e.g. var/store")
    parser.add_argument("trial", help="its id, as reports, logs and MLflow's traces name it")
    parser.add_argument("--campaign", help="where it is looked for, e.g. miniature-s1; in all of them without")
    parser.add_argument("--tokenizer", type=Path, help="a model folder, for a store that has no tokenizer of its own")
    parser.add_argument("--out", type=Path, help="the file; without, <trial>.html (.json with --atif) in this folder")
    parser.add_argument("--atif", action="store_true", help="an ATIF document in place of a page")
    arguments = parser.parse_args(argv)
    try:
        store = existing_store(arguments.store)
        found = find(store, arguments.trial, arguments.campaign)
        given = arguments.tokenizer
        tokenizer = decoder(store, found.campaign) if given is None else BpeTokenizer.load(given)
        if arguments.atif:
            document = to_atif(found.trial, tokenizer, model=found.campaign, reward=found.reward)
            text = json.dumps(document, ensure_ascii=False, indent=1)
        else:
            text = html(view(found, tokenizer))
    except LongshellError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    out = arguments.out or Path(f"{found.trial.trial_id}.{'json' if arguments.atif else 'html'}")
    try:
        write_whole(out, text)
    except OSError as error:
        print(f"{out} cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_REFUSED
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
