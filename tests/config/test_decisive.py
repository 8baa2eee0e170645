"""Which keys must be as they were for a state to be continued from."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import load
from components.config.decisive import FREE, SECTIONS, decisive, decisive_digest, differences

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"


def keys(stage: str, *overrides: str) -> dict[str, object]:
    return decisive(load(MINIATURE, overrides), stage)


@pytest.mark.parametrize(
    ("stage", "override", "told"),
    [
        ("rl", "ppo.clip=0.3", "ppo.clip was 0.2, is 0.3"),
        ("rl", "ppo.actor.lr=0.1", "ppo.actor.lr was 0.0005, is 0.1"),
        ("rl", "ppo.critic.gamma=0.9", "ppo.critic.gamma was 1.0, is 0.9"),
        ("rl", "ppo.critic.warmup={steps: 2, tasks: 64}", "ppo.critic.warmup was None, is not there"),
        ("rl", "rollout.temperature=0.5", "rollout.temperature was 1.0, is 0.5"),
        ("warmup", "reward.scale=10", "reward.scale was 20.0, is 10.0"),
        ("rl", "sampler.dtype=bfloat16", "sampler.dtype was float32, is bfloat16"),
        ("sft", "sft.optimizer.beta1=0.5", "sft.optimizer.beta1 was "),
        ("base", "model.num_experts=4", "model.num_experts was 8, is 4"),
        ("base", "seed=2", "seed was 1, is 2"),
    ],
)
def test_a_key_that_changes_what_a_step_computes_is_decisive_and_told_with_both_values(
    stage: str, override: str, told: str
) -> None:
    was, now = keys(stage), keys(stage, override)
    assert decisive_digest(was) != decisive_digest(now)
    assert any(line.startswith(told) for line in differences(was, now)), differences(was, now)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.layout={tp: 2}",
        "trainer.recompute=full",
        "trainer.micro_batch_tokens=4096",
        "sampler.slots=4",
        "publish.method=collective",
        "checkpoints.keep_last=5",
        "evaluation.trials=10",
        "rl.legs=9",
        "rollout.concurrency=3",
        "name=other",
    ],
)
def test_where_how_fast_and_how_far_a_stage_runs_may_change(override: str) -> None:
    for stage in SECTIONS:
        assert differences(keys(stage), keys(stage, override)) == []
        assert decisive_digest(keys(stage)) == decisive_digest(keys(stage, override))


def test_a_stage_does_not_depend_on_what_another_reads() -> None:
    assert keys("rl") == keys("rl", "sft.tokens=7")
    assert keys("sft") == keys("sft", "ppo.clip=0.3")


def test_every_key_that_may_change_exists() -> None:
    config = load(MINIATURE).model_dump(mode="json")
    for path in FREE:
        section, _, key = path.partition(".")
        assert key in config[section], path
