"""What the things of a campaign are called: keys of the artifact store, runs and models of MLflow.

Invariant: whoever makes a thing, looks for it, or foresees it takes its name from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

EXPERIMENT = "longshell"
"""MLflow's experiment, of every campaign."""
BATCH_PARTS = ("batches", "rollouts", "judged", "trials", "ledger")
"""Of a step's batch: its trials, their description, figures of tokens, a row a trial, and one a launched trial."""
_CURATED = {
    "aggregate": ("candidates", "aggregate.json"),
    "gates": ("gates.json",),
    "audit": ("audit.json",),
    "repair": ("repaired", "repairs.json"),
    "reaudit": ("reaudit.json",),
    "select": ("pool", "select.json"),
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HIDDEN = "***"


def shown(address: str) -> str:
    """An address as it may be shown: with `***` for who connects and for its query, where libpq takes a password.

    One that is malformed may hold a password anywhere, so it is not parsed; where both could be meant, all is hidden.
    """
    scheme, who, at, place = _parts(address)
    if "?" in who:
        return f"{scheme}{_HIDDEN}"
    place, query, _ = place.partition("?")
    return f"{scheme}{at and f'{_HIDDEN}@'}{place}{query and f'?{_HIDDEN}'}"


def anonymous(address: str) -> tuple[str, str]:
    """An address as anyone may follow it, and who connected by it: `user:password`, or nothing."""
    scheme, who, _, place = _parts(address)
    return f"{scheme}{place}", who


def hidden(text: str, address: str) -> str:
    """A text that may quote the address, or a part of it, with `***` for what `shown` hides; users are told."""
    text = text.replace(address, shown(address))
    for word in sorted({word for word in _secrets(address) if word}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", _HIDDEN, text)
    return text


def _parts(address: str) -> tuple[str, str, str, str]:
    """Scheme, who connects, whether anybody is named, and the rest."""
    scheme = "" if (found := _SCHEME.match(address)) is None else found[0]
    return scheme, *address.removeprefix(scheme).rpartition("@")


def _secrets(address: str) -> Iterator[str]:
    """Words of an address that nobody may read: whole, as they are meant, and in the pieces that a parser makes."""
    scheme, who, _, place = _parts(address)
    user, named, password = who.partition(":")
    values = [pair.partition("=")[2] for pair in place.partition("?")[2].split("&")]
    whole = [address.removeprefix(scheme)] if "?" in who else []
    found = [*whole, password if named else user, *values]
    for word in found:
        yield from (word, unquote(word), *re.split(r"[:/@?&=#]+", word))


def campaign_key(campaign: str, *parts: str | int) -> str:
    """Everything that a campaign keeps in the store lies below `campaigns/<campaign>`."""
    return "/".join(["campaigns", campaign, *(str(part) for part in parts)])


def pool_key(campaign: str) -> str:
    """The curated pool."""
    return campaign_key(campaign, "pool")


def curated_keys(campaign: str, stage: str) -> tuple[str, ...]:
    """What a stage of an audited curation leaves: tasks, if any, and last what it says of each."""
    return tuple(campaign_key(campaign, name) for name in _CURATED[stage])


def imported_key(campaign: str) -> str:
    """The copy of `model.path`, which is the base model then."""
    return campaign_key(campaign, "base", "imported")


def checkpoint_key(campaign: str, stage: str) -> str:
    """The model that a supervised stage ends with."""
    return campaign_key(campaign, stage, "checkpoint")


def samples_key(campaign: str) -> str:
    """What SFT learns from, where that are trials that passed."""
    return campaign_key(campaign, "rejection", "samples")


def critic_key(campaign: str) -> str:
    """The critic's weights after its warm-up."""
    return campaign_key(campaign, "warmup", "critic")


def leg_checkpoint_key(campaign: str, leg: int) -> str:
    """The model at the end of a leg."""
    return campaign_key(campaign, "rl", "legs", leg, "checkpoint")


def step_key(campaign: str, stage: str, step: int | str, name: str) -> str:
    """Something of one step: its `record.json`, or the trainer's `state`. A plan says `<step>` for every one."""
    return campaign_key(campaign, stage, "steps", _numbered(step), name)


def batch_key(campaign: str, stage: str, step: int | str, part: str) -> str:
    """A part of the batch of one step, one of `BATCH_PARTS`."""
    return campaign_key(campaign, stage, part, _numbered(step))


def tokenizer_key(campaign: str) -> str:
    """The tokenizer of every model of the campaign, by itself: who reads trials needs no weights."""
    return campaign_key(campaign, "tokenizer")


def demonstrations_key(campaign: str, stage: str) -> str:
    """What a supervised stage has collected; its counts lie beside it, with `.json`."""
    return campaign_key(campaign, stage, "demonstrations")


def lineage_key(campaign: str, stage: str) -> str:
    """The name of what a stage has done since it began in this store."""
    return campaign_key(campaign, stage, "lineage.json")


def refused_key(campaign: str, stage: str, step: int | str) -> str:
    """A note of a trainer's state that could not be continued from."""
    return campaign_key(campaign, stage, "refused", _numbered(step))


def pass_key(campaign: str, number: int | str) -> str:
    """The trials of one pass over the tasks, for rejection sampling."""
    return campaign_key(campaign, "rejection", "passes", _numbered(number))


def fates_key(campaign: str) -> str:
    """What became of every trial that rejection sampling drew."""
    return campaign_key(campaign, "rejection", "trials.json")


def evaluation_key(campaign: str, label: str, part: str, suite: str | None = None) -> str:
    """What an evaluation leaves, of the held-out tasks or of a suite. Nights of one suite lie beside each other."""
    return campaign_key(campaign, "evaluate", *([] if suite is None else [suite]), label, part)


def diagnosis_key(campaign: str, through: int | None, *parts: str) -> str:
    """A part of a report: of the steps before `through`, or of all."""
    folder = ("diagnose",) if through is None else ("diagnose", f"step-{through:06d}")
    return campaign_key(campaign, *folder, *parts)


def page_of(trial_id: str) -> str:
    """Where the page of a trial lies beside the report that names it."""
    return f"trajectories/{trial_id}.html"


def run_key(campaign: str, stage: str) -> str:
    """By what MLflow's run of a stage is found again (tag `longshell.key`); the campaign's own is its name alone."""
    return f"{campaign}/{stage}"


def registered_model(campaign: str) -> str:
    """MLflow's registered model, of which every checkpoint is a version."""
    return f"longshell-{campaign}"


def _numbered(number: int | str) -> str:
    return f"{number:06d}" if isinstance(number, int) else number
