"""Every option of the objective, for real: a few steps of a leg from one SFT checkpoint, chosen by configuration."""

from __future__ import annotations

import math
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.jobs.conftest import SmallCampaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

DISTRIBUTIONAL = ("ppo.critic.loss={kind: hl_gauss, bins: 21}", "ppo.critic.length_adaptive=0.05")
BASELINE = ("ppo.critic=null", "ppo.group_size=2", "ppo.whiten_advantages=false", "rl.leg_steps=2")


def _leg(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any], critic: str | None = None
) -> list[dict[str, float]]:
    """Runs a leg; gives the metrics of its steps."""
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": critic, "first_step": 0}
    campaign.run("rl", inputs, index=1)
    return [campaign.record(step)["metrics"] for step in range(campaign.config.rl.leg_steps)]


@pytest.fixture(scope="session")
def warm(campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any]) -> tuple[SmallCampaign, dict[str, Any]]:
    """A warm-up of a critic of bins, with every other option that goes with it, at a temperature other than 1."""
    made = campaign.variant(
        "warm", *DISTRIBUTIONAL, "ppo.corrections.apply=[tis, sequence_k3]", "rollout.temperature=0.7"
    )
    inputs = {"pool": pool["pool"], "checkpoint": sft["checkpoint"], "state": None, "critic": None, "first_step": 0}
    return made, made.run("warmup", inputs)


def test_a_warm_up_keeps_the_critics_weights_and_nothing_else(
    warm: tuple[SmallCampaign, dict[str, Any]], sft: dict[str, Any]
) -> None:
    made, result = warm
    folder = made.store.tree(result["critic"])
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    weights = load_file(folder / "model.safetensors")
    assert weights["score.weight"].shape == (21, made.config.model.hidden_size)
    assert weights["score.weight"].any(), "it has learned"
    before = load_file(made.store.tree(sft["checkpoint"]) / "model.safetensors")
    assert not weights["model.embed_tokens.weight"].equal(before["model.embed_tokens.weight"])


def test_a_warm_up_trains_the_actor_too_and_measures_at_the_sampling_temperature(
    warm: tuple[SmallCampaign, dict[str, Any]],
) -> None:
    made, result = warm
    records = [made.store.get_json(f"campaigns/{made.name}/warmup/steps/{step:06d}/record.json") for step in (0, 1)]
    first, second = (record["metrics"] for record in records)
    assert "ppo/loss" not in first, "the first step is the critic's alone"
    assert {"ppo/loss", "ppo/lambda_mean", "critic/square_error", "critic/outside_bins"} <= second.keys()
    for metrics in (first, second):
        assert metrics["gap/engine_max"] < 1e-3, "both engines at temperature 0.7"
        assert metrics["correction/tis_capped"] == 0
        assert metrics["correction/weight_mean"] == pytest.approx(1, abs=1e-4)
    assert result["launched"] == 9, "five, and four beside the one that was carried"


def test_rl_begins_with_the_warm_critic(
    warm: tuple[SmallCampaign, dict[str, Any]], pool: dict[str, Any], sft: dict[str, Any]
) -> None:
    made, result = warm
    steps = _leg(made, pool, sft, result["critic"])
    cold = math.log(21)  # a head of zeros takes all bins alike, whatever the return
    assert abs(steps[0]["critic/loss"] - cold) > 0.05
    assert "ppo/loss" in steps[1], "the actor moves after one step of the critic alone"


def test_two_processes_learn_from_demonstrations_what_one_does(
    campaign: SmallCampaign, pool: dict[str, Any], base: dict[str, Any], sft: dict[str, Any]
) -> None:
    made = campaign.variant("sft-two", "trainer.layout={tp: 2}")
    result = made.run("sft", {"pool": pool["pool"], "checkpoint": base["checkpoint"]})
    assert result["step"] == sft["step"]
    assert result["metrics"]["sft/loss"] == pytest.approx(sft["metrics"]["sft/loss"], rel=1e-3)


@pytest.mark.parametrize(("layout", "method"), [("{tp: 2}", "disk"), ("{dp: 2, ep: 2}", "collective")])
def test_a_leg_learns_in_two_processes(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any], layout: str, method: str
) -> None:
    made = campaign.variant(f"two-{method}", f"trainer.layout={layout}", f"publish.method={method}")
    for step, metrics in enumerate(_leg(made, pool, sft)):
        assert metrics["tito/drift"] == 0
        assert metrics["gap/engine_max"] < 1e-3, "what was published is what is trained"
        assert ("ppo/loss" in metrics) == (step >= 1)


@pytest.mark.parametrize("algorithm", ["gspo", "grpo"])
def test_a_baseline_learns_from_groups_without_a_critic(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any], algorithm: str
) -> None:
    made = campaign.variant(algorithm, f"ppo.algorithm={algorithm}", "ppo.clip=0.01", *BASELINE)
    for metrics in _leg(made, pool, sft):
        assert metrics["group/count"] <= 3
        assert metrics["rollout/admitted"] == 4
        assert {"ppo/loss", "ppo/clip_frac", "ppo/entropy", "group/compared"} <= metrics.keys()
        assert not any(name.startswith("critic/") for name in metrics)


@pytest.mark.parametrize("applied", ["[icepop, sequence_ratio]", "[sequence_k3]"])
def test_ppo_runs_with_every_correction_and_with_groups(
    campaign: SmallCampaign, pool: dict[str, Any], sft: dict[str, Any], applied: str
) -> None:
    name = applied.strip("[]").split(",")[0].replace("_", "-")
    overrides = (f"ppo.corrections.apply={applied}", "ppo.group_size=2", "rl.leg_steps=2")
    for metrics in _leg(campaign.variant(name, *overrides), pool, sft):
        assert {"group/count", "critic/explained_variance", "correction/weight_mean"} <= metrics.keys()
