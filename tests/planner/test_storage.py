"""What a campaign leaves in its store, at the most."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import load
from components.planner import ModelShape, storage
from components.rollout import TokenFigures

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"


def test_every_kind_is_counted_as_often_as_it_is_kept() -> None:
    config = load(MINIATURE)
    parameters = ModelShape.of(config.model).parameters
    critic = parameters  # The embedding is tied, and the head is small.
    terms = storage(config).terms
    assert terms["checkpoints"] == 4 * parameters * (2 + 3)
    supervised = 2 * 2 * 4 * parameters * (1 + 1)  # base and SFT, two states each: weights, and one moment of muon
    leg = 4 * (parameters * (1 + 2 + 2) + critic * (1 + 2))  # two moments of adam, snapshots of two versions
    assert terms["states"] == supervised + leg * (2 + 1 + 1)
    assert terms["batches"] == 3 * 16 * 64 * 512 * (4 + 4 + 1 + 2 * 2)
    assert terms["judged"] == 3 * 16 * 64 * 512 * 4 * len(TokenFigures.__slots__)
    assert terms["rejection"] == 0
    assert terms["evaluations"] == (3 * 256 + 2 * 64) * 512 * 9
    assert storage(config).total == sum(terms.values())


@pytest.mark.parametrize(
    ("override", "grown"),
    [
        ("rl.legs=5", {"checkpoints", "batches", "judged", "evaluations"}),
        ("checkpoints.keep_last=3", {"states"}),
        ("ppo.critic.warmup={steps: 2, tasks: 64}", {"checkpoints", "states", "batches", "judged"}),
        ("harness.max_context_tokens=500", set()),
    ],
)
def test_what_is_kept_more_of_takes_more(override: str, grown: set[str]) -> None:
    before, after = (storage(load(MINIATURE, overrides)).terms for overrides in ([], [override]))
    assert {name for name in before if after[name] > before[name]} == grown


def test_passes_of_rejection_sampling_and_what_is_selected_of_them_are_counted() -> None:
    sampled = "sft.rejection={attempts: 6, per_task: 2, tasks: 50, max_tokens: 300}"
    found = storage(load(MINIATURE, ["sft.demonstrations=null", sampled])).terms["rejection"]
    assert found == 50 * (6 * 512 * (4 + 4 + 1) + 2 * 300 * (4 + 1))
    whole = "sft.rejection={attempts: 3, per_task: null}"
    config = load(MINIATURE, ["sft.demonstrations=null", whole])
    assert storage(config).terms["rejection"] == config.pool.train_tasks * 3 * 512 * (9 + 5)
