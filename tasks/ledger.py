"""The ledger of a leg, as two tables of its MLflow run: a row a launched trial, and what became of every class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from components.artifacts import ArtifactStore
from components.naming import batch_key
from tasks import tracking

if TYPE_CHECKING:
    from components.tracking import Run


def log_ledger(store: ArtifactStore, run: Run, campaign: str, leg: int, steps: Iterable[int]) -> None:
    """Of these steps, as far as the store has theirs. A leg that is run again replaces its own tables."""
    from components.rollout import Ledger, by_class  # Imports the stages' parts, which takes a second.

    keys = {step: batch_key(campaign, "rl", step, "ledger") for step in steps}
    ledgers = [Ledger.from_records(step, store.get_json(key)) for step, key in keys.items() if store.exists(key)]
    if rows := [row for ledger in ledgers for row in ledger.rows]:
        tracker = tracking.tracker()
        tracker.log_table(run, f"ledger/leg-{leg}.json", [record for each in ledgers for record in each.records()])
        tracker.log_table(run, f"ledger/leg-{leg}-classes.json", by_class(rows))
