"""Configuration is validated whole, and every problem is named with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from components.config import CampaignConfig, digest, load
from components.errors import ConfigError

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"


def test_the_miniature_loads_and_an_override_changes_one_key() -> None:
    config = load(MINIATURE, ["seed=7", "rl.legs=2"])
    assert (config.seed, config.rl.legs, config.rl.leg_steps) == (7, 2, load(MINIATURE).rl.leg_steps)


@pytest.mark.parametrize("file", sorted(MINIATURE.parent.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_configuration_that_we_ship_loads_under_its_own_name(file: Path) -> None:
    config = load(file)
    assert config.name == file.stem


def test_the_papers_configuration_has_the_papers_values() -> None:
    config = load(MINIATURE.parent / "t1-122b.yaml")
    assert math.ceil((1 + config.rollout.oversample) * config.rollout.batch) == 560
    canonical = 5e-7
    assert config.ppo.critic is not None
    assert config.ppo.actor.lr == pytest.approx(2 * canonical)
    assert config.ppo.critic.optimizer.lr == pytest.approx(30 * canonical)
    assert config.ppo.critic.optimizer.lr / config.ppo.actor.lr == pytest.approx(15)
    assert config.rl.legs * config.rl.leg_steps == 110
    assert config.rl.legs * config.rl.leg_steps * config.rollout.batch / config.pool.train_tasks == pytest.approx(
        3.75, abs=0.01
    )
    assert config.pool.train_tasks * 3 // config.rollout.batch == 87  # the paper's three epochs in 88 steps
    assert (config.harness.max_context_tokens, config.reward.scale) == (86_016, 20)


def test_every_unknown_key_and_bad_value_is_listed_with_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        load(MINIATURE, ["rl.legz=2", "ppo.clip=-1", "rollout.batch=many", "rollout.temperature=0.001"])
    places = {problem.split(":")[0] for problem in caught.value.problems}
    assert places == {"ppo.clip", "rl.legz", "rollout.batch", "rollout.temperature"}


@pytest.mark.parametrize("override", ["rl.legs", "=3", "rl.legs.deep=1", "rl.legs=[1"])
def test_a_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        load(MINIATURE, [override])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("text", ["- a list", "a: [1", ""])
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load(file)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.path=/models/base", "base is required"),
        ("evaluation.trials=100000", "heldout_tasks"),
        ("rollout.batch=100000", "train_tasks"),
        ("harness.max_turn_tokens=512", "leaves no room"),
        ("sampler.engine=sglang", "needs either urls or sglang"),
        ("sampler.urls=[http://a:1]", "refused with engine: embedded"),
        ("sampler={engine: sglang, urls: ['http://a:1', 'http://a:1'], context_tokens: 512}", "given twice"),
        ("sampler={engine: sglang, urls: ['http://u:w@a:1'], context_tokens: 512}", "must hold no credentials"),
        ("sandbox.docker.host=tcp://u:w@a:2376", "must hold no credentials"),
        ("sampler.placement=ray", "needs publish.folder"),
        ("sampler={engine: sglang, sglang: {}, context_tokens: 512}", "random output layer"),
        ("sampler={engine: sglang, sglang: {}, router_dtype: bfloat16}", "router_dtype is the embedded engine's"),
        ("sampler.context_tokens=256", "exceeds sampler.context_tokens"),
        ("model.num_experts_per_tok=9", "exceeds num_experts"),
        ("ppo.actor.kind=muon", "matrix_lr"),
        ("sft.rejection={}", "exactly one of demonstrations and rejection"),
        ("sft.demonstrations=null", "exactly one of demonstrations and rejection"),
    ],
)
def test_impossible_combinations_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(MINIATURE, [override])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{tasks: 641}", "sft.rejection.tasks 641 exceeds pool.train_tasks 640"),
        ("{max_tokens: 513}", "sft.rejection.max_tokens 513 exceeds harness.max_context_tokens 512"),
        ("{teacher: {base_url: 'http://u:w@h/v1', model: m}}", "no credentials"),
        ("{teacher: {base_url: 'http://h/v1', model: m, key: k}}", "sft.rejection.teacher.key: unknown key"),
        ("{bar: 0}", "greater than 0"),
        ("{source: teacher}", "sft.rejection.source: unknown key"),
    ],
)
def test_samples_that_cannot_come_about_are_refused(section: str, message: str) -> None:
    load(MINIATURE, ["sft.demonstrations=null", "sft.rejection={tasks: 640, max_tokens: 512}"])
    with pytest.raises(ConfigError, match=message):
        load(MINIATURE, ["sft.demonstrations=null", f"sft.rejection={section}"])


def test_prefects_form_can_show_every_choice() -> None:
    # Its form knows anyOf and allOf; a discriminated union of pydantic is oneOf.
    assert "oneOf" not in json.dumps(CampaignConfig.model_json_schema())


def test_the_digest_follows_the_values_not_the_spelling() -> None:
    assert digest(load(MINIATURE)) == digest(load(MINIATURE, ["rl.legs=" + str(load(MINIATURE).rl.legs)]))
    assert digest(load(MINIATURE)) != digest(load(MINIATURE, ["seed=9"]))


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "broken.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"broken.yaml: 1 problem\n.*is not text in UTF-8"):
        load(tmp_path / "broken.yaml")


def test_a_wrong_override_is_told_beside_the_file_that_it_changes():
    with pytest.raises(ConfigError, match=r"miniature.yaml with rl.legz=1: 1 problem"):
        load(MINIATURE, ["rl.legz=1"])
