"""In which order stages are asked for, and what is handed from one to the next. The graphs alone, without services."""

from __future__ import annotations

import pytest

import flows.campaign
import flows.evaluate
from components.cluster import REPOSITORY
from components.config import CampaignConfig, load
from tasks.results import Checkpoint, Pool

POOL = Pool("pool", "d", 9, 1, 0.0)


class Fake:
    """A flow task that notes its call and gives what it is told to."""

    def __init__(self, name: str, calls: list, give) -> None:
        self._name, self._calls, self._give = name, calls, give

    def __call__(self, *args, **kwargs):
        self._calls.append((self._name, *args[1:], *kwargs.values()))
        return self._give(*args, **kwargs)

    def submit(self, *args, **kwargs):
        value = self(*args, **kwargs)
        return type("Future", (), {"result": lambda _: self._calls.append((self._name, "result")) or value})()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list:
    noted: list = []
    gives = {
        "claim": lambda config: "name",
        "curate": lambda config: POOL,
        "base_model": lambda config, pool: Checkpoint("base", "base", 0),
        "sft": lambda config, pool, base: Checkpoint("sft", "sft", 0),
        "rl_leg": lambda config, pool, before, leg: Checkpoint(f"leg-{leg}", f"leg-{leg}", leg, state="s"),
        "evaluate": lambda config, pool, checkpoint, trials, index: f"score of {checkpoint.label}",
        "diagnose": lambda config, scores: "diagnosis",
        "summarize": lambda config, checkpoints, scores, diagnosis: {"scores": scores},
    }
    for name, give in gives.items():
        monkeypatch.setattr(flows.campaign, name, Fake(name, noted, give))
    return noted


def config(*overrides: str) -> CampaignConfig:
    return load(REPOSITORY / "configs" / "miniature.yaml", overrides)


def names(calls: list) -> list[str]:
    return [f"{call[0]} {call[2].label}" if call[0] == "evaluate" and len(call) > 2 else call[0] for call in calls]


def test_every_checkpoint_is_evaluated_beside_the_stage_that_follows_it(calls: list) -> None:
    result = flows.campaign.campaign.fn(config("rl.legs=2"))
    order = ["claim", "curate", "base_model", "evaluate base", "sft", "evaluate sft", "rl_leg", "evaluate leg-1"]
    order += ["rl_leg", "evaluate leg-2", *["evaluate"] * 4, "diagnose", "summarize"]
    assert names(calls) == order
    assert result == {"scores": [f"score of {label}" for label in ("base", "sft", "leg-1", "leg-2")]}


def test_base_sft_and_the_last_leg_get_the_full_evaluation(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=3", "evaluation.trials=256", "evaluation.leg_trials=64"))
    assert [call[3] for call in calls if call[0] == "evaluate" and len(call) > 2] == [256, 256, 64, 64, 256]


def test_a_leg_starts_from_the_leg_before(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=2"))
    legs = [call for call in calls if call[0] == "rl_leg"]
    assert [(before.label, leg) for _, _, before, leg in legs] == [("sft", 1), ("leg-1", 2)]


@pytest.mark.parametrize("found", [None, Checkpoint("leg-2", "leg-2", 20)])
def test_the_nightly_evaluation_takes_what_there_is_and_a_new_name_every_day(monkeypatch, found) -> None:
    asked: list = []
    monkeypatch.setattr(flows.evaluate, "claim", lambda config: "name")
    monkeypatch.setattr(flows.evaluate, "curate", lambda config: POOL)
    monkeypatch.setattr(flows.evaluate, "find_checkpoint", lambda config, which: found)
    monkeypatch.setattr(flows.evaluate, "base_model", lambda config, pool: Checkpoint("base", "base", 0))
    monkeypatch.setattr(flows.evaluate, "score", lambda *args: asked.append(args))
    flows.evaluate.evaluate.fn(config())
    ((_, _, checkpoint, _, index, label),) = asked
    assert checkpoint.label == ("leg-2" if found else "base")
    assert label.endswith(checkpoint.label)
    assert index > 700_000
