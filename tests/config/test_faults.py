"""Faults that the configuration of other projects had (the public report is named)."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import load, validate
from components.errors import ConfigError

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
BASELINE = ("ppo.algorithm=grpo", "ppo.critic=null", "ppo.group_size=8", "ppo.whiten_advantages=false")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["ppo.critic=null"], "critic is required with algorithm ppo"),
        (["ppo.algorithm=grpo"], "critic is refused with algorithm grpo"),
        ([*BASELINE, "ppo.group_size=1"], "group_size must be 2 or more"),
        ([*BASELINE, "ppo.whiten_advantages=true"], "groups are normalised"),
        ([*BASELINE, "ppo.group_size=7"], "not a multiple of ppo.group_size 7"),
        ([*BASELINE, "ppo.algorithm=gspo"], "gspo needs about 4e-4"),
        ([*BASELINE, "ppo.algorithm=gspo", "ppo.clip=4e-4", "ppo.corrections.apply=[tis]"], "one ratio a stream"),
        ([*BASELINE, "ppo.algorithm=gspo", "ppo.clip=4e-4", "trainer.layout.cp=2"], "needs whole streams"),
        (["ppo.corrections.apply=[tis, icepop]"], "one of tis and icepop"),
        (["ppo.corrections.apply=[tis, tis]"], "twice"),
        (["ppo.corrections.apply=[mis]"], "ppo.corrections.apply.0"),
        (["ppo.critic.loss={kind: hl_gauss, clip: 0.2}"], "clip: unknown key"),
        (["ppo.critic.loss={kind: clipped, bins: 9}"], "bins: unknown key"),
        (["ppo.critic.loss={kind: hl_gauss, low: 2}"], "must lie below high"),
        (["ppo.critic.warmup={steps: 2, tasks: 9}"], "ppo.critic.warmup.tasks is 9"),
        (["ppo.critic.lamda=0.9"], "ppo.critic.lamda: unknown key"),
    ],
)
def test_an_option_that_the_chosen_algorithm_would_not_read_is_refused(overrides: list[str], message: str) -> None:
    # open-instruct #1823, slime #2247: an option was accepted and never read; the critic trained at the actor's rate.
    with pytest.raises(ConfigError, match=message):
        load(MINIATURE, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        BASELINE,
        [*BASELINE, "ppo.algorithm=gspo", "ppo.clip=4e-4", "ppo.corrections.apply=[sequence_k3]"],
        ["ppo.critic.loss={kind: hl_gauss, bins: 9}", "ppo.critic.length_adaptive=0.05", "ppo.group_size=2"],
        ["ppo.corrections.apply=[icepop, sequence_ratio]", "ppo.critic.warmup={steps: 2, tasks: 128}"],
    ],
)
def test_every_algorithm_survives_the_way_into_a_jobs_spec(overrides: list[str]) -> None:
    config = load(MINIATURE, overrides)
    assert validate(config.model_dump(mode="json"), "spec") == config
