"""A trial as its store holds it: turns and verdict, its streams, what the trainer said of them.

Invariant: what is given is what was put, or a typed error says what is missing or damaged, and where. What a trial
never had (streams of an evaluation, figures of a step that is not learned yet) is absent and no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from components.artifacts import ArtifactStore
from components.errors import ConfigError, LongshellError, RecordError, StoreError
from components.naming import batch_key, tokenizer_key
from components.records import Reward, Sample, Trial
from components.rollout import LedgerRow, TokenFigures, TrialRow, load_batch, load_figures
from components.tito import BpeTokenizer

BATCHES = re.compile(r"campaigns/[^/]+/(?:(?:rl|warmup)/batches/\d{6}|evaluate/.+/trials)")
"""Keys of the folders that hold trials."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One trial, and all that is stored about it.

    Attributes:
        campaign: whose it is.
        key: of the batch that holds it.
        samples: the streams that it is trained as; none for an evaluation's.
        figures: what the trainer said of each stream, by chunk; a chunk that was not learned from has none.
        row: its row in the ledger of the step.
    """

    campaign: str
    key: str
    trial: Trial
    reward: Reward
    samples: tuple[Sample, ...]
    figures: Mapping[int, TokenFigures]
    row: LedgerRow


def find(store: ArtifactStore, trial_id: str, campaign: str | None = None) -> Stored:
    """Looks through the batches of a campaign, or of all, for a trial; through later steps first.

    Raises:
        ConfigError: no batch has it. The message says where else it was met (a trial that was cancelled has a row in a
            ledger and nothing more), and which batches could not be looked at.
    """
    rows: list[LedgerRow] = []
    damaged: list[str] = []
    keys = list(_batches(store, campaign))
    for key in keys:
        try:
            met = _look(store, key, trial_id)
        except StoreError as error:
            damaged.append(f"{key} could not be looked at: {error}")
            continue
        if isinstance(met, Stored):
            return met
        rows += [] if met is None else [met]
    named = store.url if campaign is None else f"{store.url}, campaign {campaign}"
    told = [_ended(row) for row in rows]
    raise ConfigError([f"none of the {len(keys)} batches in {named} has trial {trial_id!r}", *told, *damaged], "trial")


def stored(store: ArtifactStore, key: str, trial_id: str) -> Stored:
    """A trial of the batch at `key`.

    Raises:
        ConfigError: the batch has no such trial.
        StoreError: there is no such batch, or it is damaged.
    """
    met = _look(store, key, trial_id)
    if isinstance(met, Stored):
        return met
    told = [] if met is None else [_ended(met)]
    raise ConfigError([f"{key} has no trial {trial_id!r}", *told], "trial")


def rows(store: ArtifactStore, campaign: str, steps: Iterable[int]) -> tuple[list[tuple[int, TrialRow]], list[str]]:
    """(step, row) of every trial of these steps of RL; nothing of steps that were taken before rows were kept.

    Second, what is wrong with each step whose rows cannot be read, which is no reason to have no report.
    """
    found: list[tuple[int, TrialRow]] = []
    problems: list[str] = []
    for step in steps:
        key = batch_key(campaign, "rl", step, "trials")
        try:
            told = store.get_json(key) if store.exists(key) else []
            if not isinstance(told, list):
                raise RecordError(f"{key} is no list of rows")
            found += [(step, TrialRow.from_json(row)) for row in told]
        except (LongshellError, ValueError) as error:
            problems.append(f"step {step}: {error}")
    return found, problems


def decoder(store: ArtifactStore, campaign: str) -> BpeTokenizer:
    """The tokenizer of a campaign's models.

    Raises:
        StoreError, CheckpointError: the store does not have it, or it is damaged.
    """
    return BpeTokenizer.load(store.tree(tokenizer_key(campaign)))


def _batches(store: ArtifactStore, campaign: str | None) -> Iterator[str]:
    prefix = "campaigns" if campaign is None else f"campaigns/{campaign}"
    return (key for key in reversed(store.list(prefix)) if BATCHES.fullmatch(key))


def _look(store: ArtifactStore, key: str, trial_id: str) -> Stored | LedgerRow | None:
    """A trial of a batch; its row in the ledger, where that is all there is of it."""
    with store.borrowed(key) as folder:
        batch = load_batch(folder, only={trial_id})
    row = next((row for row in batch.ledger.rows if row.trial_id == trial_id), None)
    if row is None or not batch.trials:
        return row
    (trial,), (reward,) = batch.trials, batch.rewards
    return Stored(key.split("/")[1], key, trial, reward, batch.samples, _figures(store, key, trial_id), row)


def _ended(row: LedgerRow) -> str:
    detail = f" ({row.detail})" if row.detail else ""
    return f"step {row.step} has it as {row.outcome}{detail}: of such a trial no turn is stored with the step"


def _figures(store: ArtifactStore, key: str, trial_id: str) -> Mapping[int, TokenFigures]:
    judged = key.replace("/batches/", "/judged/")
    if judged == key or not store.exists(judged):
        return {}
    return load_figures(store.get_bytes(judged), trial_id)
