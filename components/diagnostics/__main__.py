"""`python -m components.diagnostics STORE CAMPAIGN`: the diagnosis of a campaign, finished or not, without Prefect."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from components.artifacts import ArtifactStore, existing_store
from components.diagnostics.diagnosis import diagnose
from components.diagnostics.figures import figures
from components.diagnostics.finding import Severity
from components.diagnostics.page import page
from components.diagnostics.report import render
from components.diagnostics.stored import read
from components.diagnostics.trajectory import (
    Chosen,
    beside,
    chosen,
    decoder,
    html,
    rows,
    section,
    stored,
    unread,
    view,
)
from components.errors import LongshellError
from components.naming import batch_key, campaign_key, page_of
from components.rollout.atif import write_whole

EXIT_RED, EXIT_REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0 unless the verdict is red (1) or there is nothing to diagnose (2)."""
    parser = argparse.ArgumentParser(prog="python -m components.diagnostics", description=__doc__)
    parser.add_argument("store", help="folder or URL of the artifact store, e.g. var/store")
    parser.add_argument("campaign", help="its name and seed, e.g. miniature-s1")
    parser.add_argument("--out", type=Path, help="a folder: the report as a page, and those of the trials to read")
    parser.add_argument("--running", action="store_true", help="a leg runs: a last step that is too old is a finding")
    arguments = parser.parse_args(argv)
    try:
        store = existing_store(arguments.store)
        records, evaluations = read(store, arguments.campaign)
        trials, problems = rows(store, arguments.campaign, [int(record["step"]) for record in records])
        running = arguments.running and not store.exists(campaign_key(arguments.campaign, "results.json"))
    except LongshellError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    worth = chosen(trials)
    if arguments.running and not running:
        print(f"{arguments.campaign} is finished: --running has nothing to look for", file=sys.stderr)
    now_ms = int(time.time() * 1000) if running else None
    diagnosis = diagnose(records, evaluations, now_ms=now_ms)
    title = f"Diagnosis of {arguments.campaign}"
    text = render(title, diagnosis, records, evaluations)
    if arguments.out is not None:
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
            written = _write_pages(arguments.out, store, arguments.campaign, worth)
            whole = text + (f"\n{section(worth, beside(written))}" if worth else "") + unread(problems)
            write_whole(arguments.out / "report.html", page(title, whole, figures(records, evaluations)))
        except OSError as error:
            print(f"{arguments.out} cannot be written: {error.strerror}", file=sys.stderr)
            return EXIT_REFUSED
    command = f"python -m components.diagnostics.trajectory {store.url} TRIAL"
    told = f"\n{section(worth, {})}\n`{command}` writes the page of one.\n" if worth else ""
    print(text + told + unread(problems), end="")
    return EXIT_RED if diagnosis.severity is Severity.RED else 0


def _write_pages(folder: Path, store: ArtifactStore, campaign: str, worth: Sequence[Chosen]) -> list[str]:
    """The pages of these trials below `folder`; the ids of those that could be read."""
    written = []
    for each in worth:
        trial = each.row.trial_id
        try:
            found = stored(store, batch_key(campaign, "rl", each.step, "batches"), trial)
            text = html(view(found, decoder(store, campaign)))
        except LongshellError as error:
            print(f"trial {trial} has no page: {error}", file=sys.stderr)
            continue
        path = folder / page_of(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
        written.append(trial)
    return written


if __name__ == "__main__":
    sys.exit(main())
