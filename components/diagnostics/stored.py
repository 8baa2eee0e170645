"""A campaign as its store holds it: committed steps of RL, and the evaluations of its own sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.artifacts import ArtifactStore
from components.diagnostics.series import Evaluation, StepRecord
from components.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A finished evaluation: RL steps behind its checkpoint (0 before RL), and everything its job said."""

    step: int
    result: Mapping[str, Any]


def evaluated(store: ArtifactStore, campaign: str) -> list[Evaluated]:
    """The finished evaluations of a campaign's own sequence (base, SFT, each leg), in its order; none of a night's."""
    found: dict[int, Evaluated] = {}
    for key in store.list(f"campaigns/{campaign}/jobs"):
        folder, _, document = key.rpartition("/")
        if document != "result.json" or not folder.rpartition("/")[2].startswith(f"{campaign}-evaluate-"):
            continue
        spec = store.get_json(f"{folder}/spec.json")
        index, rl = int(spec["index"]), spec["config"]["rl"]
        if index <= rl["legs"] + 1:
            found[index] = Evaluated(max(0, index - 1) * rl["leg_steps"], store.get_json(key))
    return [found[index] for index in sorted(found)]


def read(store: ArtifactStore, campaign: str) -> tuple[list[StepRecord], list[Evaluation]]:
    """What `diagnose` takes, of a campaign that ended, runs, or was killed.

    Raises:
        ConfigError: the store has no such campaign, or nothing of it that could be diagnosed.
    """
    keys = [key for key in store.list(f"campaigns/{campaign}/rl/steps") if key.endswith("/record.json")]
    records = [store.get_json(key) for key in sorted(keys)]
    scores = [Evaluation(each.result["label"], each.step, each.result["score"]) for each in evaluated(store, campaign)]
    if not records and not scores:
        known = sorted({key.split("/")[1] for key in store.list("campaigns")})
        told = f"it has {', '.join(known)}" if known else "it has no campaign"
        raise ConfigError([f"{store.url} has no step and no evaluation of {campaign!r}; {told}"], "campaign")
    return records, scores
