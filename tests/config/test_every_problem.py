"""Every problem of a configuration is listed at once: what is wrong by itself, and what does not go together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import CampaignConfig, load, read, readable
from components.config.consistency import CHECKS
from components.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
BROKEN = {
    "trainer.layout.tp=3": "trainer.layout.tp 3 does not divide model.num_attention_heads 32: lower tp",
    "trainer.layout.ep=7": "trainer.layout: ep 7 must divide tp * cp * dp",
    "trainer.kernels.moe_router_fusion=true": "trainer.kernels.moe_router_fusion: is refused: a fused router ignores",
    "harness.compaction.summary_max_tokens=90000": "harness: compaction.proactive_threshold_tokens 16384 is less than",
    "sampler.sglang.tp=3": "sampler.sglang.tp 3 does not divide model.num_attention_heads 32: lower tp",
    "seed=20261130": "seed 20261130 makes seeds of samplers that SGLang does not take: choose one up to 4000000",
    "ppo.actor.lr=inf": "ppo.actor.lr: Input should be a finite number",
    "rl.legz=3": "rl.legz: unknown key",
    "ppo.clip=-1": "ppo.clip: Input should be greater than 0",
    "sampler.context_tokens=1000": "harness.max_context_tokens 86016 exceeds sampler.context_tokens 1000: raise that",
    "pool.heldout_tasks=3": "evaluation.trials 512 asks for more trials than pool.heldout_tasks (3): lower it",
}


def problems(*overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(CONFIGS / "t1-122b.yaml", overrides)
    return caught.value.problems


@pytest.mark.parametrize("override", BROKEN)
def test_a_mistake_is_told_with_its_key_and_what_to_do(override: str) -> None:
    assert any(problem.startswith(BROKEN[override]) for problem in problems(override))


def test_mistakes_of_every_kind_hide_none_of_each_other() -> None:
    found = problems(*BROKEN)
    for said in BROKEN.values():
        assert any(problem.startswith(said) for problem in found), said
    assert len(set(found)) == len(found)


@given(st.sets(st.sampled_from(sorted(BROKEN)), min_size=1))
@settings(max_examples=15)
def test_whatever_mistakes_are_made_together_each_is_listed(made: set[str]) -> None:
    found = problems(*sorted(made))
    for override in made:
        assert any(problem.startswith(BROKEN[override].split(" 3 ")[0]) for problem in found), override


def test_a_section_with_several_problems_lists_them_one_by_one() -> None:
    found = problems("sampler.sglang.dp=3", "sampler.sglang.deepep_mode=normal")
    assert [problem.partition(":")[0] for problem in found] == ["sampler.sglang"] * 3
    assert all(first != second for first, second in pairwise(found))


def test_a_check_reads_no_section_but_those_that_it_names() -> None:
    for file in CONFIGS.glob("*.yaml"):
        config = load(file)
        for check in CHECKS:
            alone = CampaignConfig.model_construct(**{name: vars(config)[name] for name in check.sections})
            for name in CampaignConfig.model_fields.keys() - check.sections:
                vars(alone).pop(name, None)  # `model_construct` fills in defaults
            assert list(check.find(alone)) == []


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_what_is_sound_reads_the_same_leniently(file: Path) -> None:
    document, _ = read(file)
    found = readable(document)
    assert found.unreadable == frozenset()
    assert found.config.model_dump(mode="json") == load(file).model_dump(mode="json")


def test_what_cannot_be_read_is_named_and_made_up_by_nothing() -> None:
    document = yaml.safe_load((CONFIGS / "t1-122b.yaml").read_text())
    document["trainer"]["layout"]["tp"] = "many"
    document["ppo"]["critic"]["warmup"]["steps"] = -1
    del document["sft"]["tokens"]
    document["rollout"] = 3
    assert readable(document).unreadable == {"trainer", "ppo", "sft", "rollout"}
