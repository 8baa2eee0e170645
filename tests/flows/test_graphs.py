"""In which order stages are asked for, and what is handed from one to the next. The graphs alone, without services."""

from __future__ import annotations

import logging

import pytest

import flows.campaign
import flows.evaluate
import flows.synthesize
from components.cluster import REPOSITORY
from components.config import CampaignConfig, load
from components.errors import ConfigError
from tasks.evaluate import NightError
from tasks.results import Checkpoint, Diagnosis, Pool, WarmCritic

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
        "warm_up": lambda config, pool, before: WarmCritic("critic"),
        "rl_leg": lambda config, pool, before, leg, critic: Checkpoint(f"leg-{leg}", f"leg-{leg}", leg, state="s"),
        "evaluate": lambda config, pool, checkpoint, trials, index: f"score of {checkpoint.label}",
        "diagnose": lambda config, scores, leg=None: Diagnosis("report", (), "red: x", "red", ()),
        "hold": lambda diagnosis, leg: None,
        "summarize": lambda config, checkpoints, scores, diagnosis: {"scores": scores},
    }
    for name, give in gives.items():
        monkeypatch.setattr(flows.campaign, name, Fake(name, noted, give))
    monkeypatch.setattr(flows.campaign, "wait", lambda futures: noted.append(("wait", len(futures))))
    return noted


def config(*overrides: str) -> CampaignConfig:
    return load(REPOSITORY / "configs" / "miniature.yaml", overrides)


def names(calls: list) -> list[str]:
    return [f"{call[0]} {call[2].label}" if call[0] == "evaluate" and len(call) > 2 else call[0] for call in calls]


def test_every_checkpoint_is_evaluated_beside_the_stage_that_follows_it(calls: list) -> None:
    result = flows.campaign.campaign.fn(config("rl.legs=2"))
    order = ["claim", "curate", "base_model", "evaluate base", "sft", "evaluate sft", "rl_leg", "evaluate leg-1"]
    order += ["diagnose", "rl_leg", "evaluate leg-2", *["evaluate"] * 4, "wait", "diagnose", "summarize"]
    assert names(calls) == order
    assert result == {"scores": [f"score of {label}" for label in ("base", "sft", "leg-1", "leg-2")]}


def test_every_leg_but_the_last_is_diagnosed_with_the_evaluations_so_far(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=3"))
    watched = [call for call in calls if call[0] == "diagnose"]
    assert [(len(scores), *leg) for _, scores, *leg in watched] == [(3, 1), (4, 2), (5,)]
    assert ("wait", 2) in calls, "a report that is still written is waited for"
    assert "hold" not in names(calls)


def test_the_next_leg_waits_for_the_diagnosis_where_a_red_one_is_to_hold_it(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=2", "diagnosis.pause_on_red=true"))
    order = names(calls)
    second = len(order) - 1 - order[::-1].index("rl_leg")
    assert order[second - 3 : second] == ["diagnose", "diagnose", "hold"], "asked for, waited for, held"


def test_base_sft_and_the_last_leg_get_the_full_evaluation(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=3", "evaluation.trials=256", "evaluation.leg_trials=64"))
    assert [call[3] for call in calls if call[0] == "evaluate" and len(call) > 2] == [256, 256, 64, 64, 256]


def test_a_leg_starts_from_the_leg_before(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=2"))
    legs = [call for call in calls if call[0] == "rl_leg"]
    assert [(before.label, leg, critic) for _, _, before, leg, critic in legs] == [("sft", 1, None), ("leg-1", 2, None)]


def test_a_critic_is_warmed_up_on_the_sft_checkpoint_when_the_configuration_asks_for_it(calls: list) -> None:
    flows.campaign.campaign.fn(config("rl.legs=1", "ppo.critic.warmup={steps: 2, tasks: 64}"))
    order = names(calls)
    assert order.index("sft") < order.index("warm_up") < order.index("rl_leg")
    assert next(call for call in calls if call[0] == "warm_up")[2].label == "sft"
    assert next(call for call in calls if call[0] == "rl_leg")[-1] == WarmCritic("critic")


def test_what_is_grown_is_the_pool_that_was_curated(monkeypatch) -> None:
    asked: list = []
    monkeypatch.setattr(flows.synthesize, "claim", lambda config: "name")
    monkeypatch.setattr(flows.synthesize, "curate", lambda config: POOL)
    monkeypatch.setattr(flows.synthesize, "grow", lambda config, pool: asked.append(pool) or "grown")
    assert flows.synthesize.synthesize.fn(config()) == "grown"
    assert asked == [POOL]


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


def _begun(monkeypatch, names: list[str]) -> list:
    """Campaigns that have a checkpoint; gives what is evaluated."""
    asked: list = []
    monkeypatch.setattr(flows.evaluate, "find_begun", lambda which: names)
    monkeypatch.setattr(flows.evaluate, "claimed", lambda name: config(f"name={name}"))
    monkeypatch.setattr(flows.evaluate, "claim", lambda config: "name")
    monkeypatch.setattr(flows.evaluate, "curate", lambda config: POOL)
    monkeypatch.setattr(flows.evaluate, "find_checkpoint", lambda config, which: Checkpoint("sft", config.name, 0))
    monkeypatch.setattr(flows.evaluate, "get_run_logger", lambda: logging.getLogger("flows"))
    monkeypatch.setattr(flows.evaluate, "score", lambda config, *_: asked.append(config.name) or config.name)
    return asked


def test_a_night_of_every_campaign_takes_the_configurations_own_where_none_has_a_checkpoint(monkeypatch) -> None:
    asked = _begun(monkeypatch, [])
    flows.evaluate.evaluate.fn(config(), every=True)
    assert asked == ["miniature"]


def test_a_campaign_that_cannot_be_evaluated_keeps_no_other_from_it_and_fails_the_night(monkeypatch, caplog) -> None:
    asked = _begun(monkeypatch, ["a", "broken", "c"])

    def claimed(name: str) -> CampaignConfig:
        if name == "broken":
            raise ConfigError(["unknown key: rl.steps"], "campaigns/broken/campaign.json")
        return config(f"name={name}")

    monkeypatch.setattr(flows.evaluate, "claimed", claimed)
    with pytest.raises(NightError, match=r"1 of 3 campaigns could not be evaluated:\n  - broken: .*\n.*rl\.steps"):
        flows.evaluate.evaluate.fn(config(), every=True)
    assert asked == ["a", "c"]
    assert "broken is not evaluated" in caplog.text


def test_every_configured_suite_is_evaluated_after_the_held_out_tasks(monkeypatch) -> None:
    asked: list = []
    monkeypatch.setattr(flows.evaluate, "claim", lambda config: "name")
    monkeypatch.setattr(flows.evaluate, "curate", lambda config: POOL)
    monkeypatch.setattr(flows.evaluate, "find_checkpoint", lambda config, which: Checkpoint("sft", "sft", 0))
    monkeypatch.setattr(flows.evaluate, "score", lambda *args: asked.append("heldout") or "held")
    monkeypatch.setattr(flows.evaluate, "score_suite", lambda *args: asked.append(args[2:]) or args[2])
    suites = "evaluation.suites=[{name: tb, path: /tb}, {name: mine, path: /mine}]"
    assert flows.evaluate.evaluate.fn(config(suites)) == ["held", "tb", "mine"]
    first, tb, mine = asked
    assert (first, tb[0], mine[0]) == ("heldout", "tb", "mine")
    assert tb[1:] == mine[1:], "one night, one label"
