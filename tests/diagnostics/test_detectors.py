"""Detectors over a library of healthy, planted and suspect campaigns."""

import random
import re
from pathlib import Path

import pytest

from components.diagnostics import DETECTORS, Severity, diagnose, render
from tests.diagnostics.campaigns import FLAT, HEALTHY, NOT_MOVED, PLANTED, RISING, SOUND, SUSPECT, Campaign, records

PAGE = Path(__file__).parents[2] / "docs/diagnosis.md"


def diagnosis_of(campaign):
    return diagnose(campaign.records(), campaign.evaluations, now_ms=campaign.now_ms)


def finding(name, campaign):
    return next(one for one in diagnosis_of(campaign).findings if one.name == name)


def changed(**series):
    return Campaign({name.replace("__", "/"): value for name, value in series.items()})


def reds(diagnosis):
    return {one.name for one in diagnosis.findings if one.severity is Severity.RED}


@pytest.mark.parametrize("campaign", SOUND.values(), ids=SOUND)
def test_nothing_is_red_in_a_healthy_campaign(campaign):
    diagnosis = diagnosis_of(campaign)
    assert diagnosis.severity <= Severity.BLIND, diagnosis.verdict
    assert diagnosis.verdict.startswith("ok: nothing is wrong in what was measured")


@pytest.mark.parametrize(("name", "campaign"), PLANTED.values(), ids=PLANTED)
def test_a_planted_failure_is_found_by_its_name_and_is_the_verdict(name, campaign):
    diagnosis, found = diagnosis_of(campaign), finding(name, campaign)
    assert found.severity is Severity.RED
    assert diagnosis.severity is Severity.RED
    assert found.text in diagnosis.verdict
    assert reds(diagnosis) <= {name} | COMES_WITH.get(name, set())


COMES_WITH = {"gamed_reward": {"heldout"}, "heldout": {"gamed_reward"}}
"""A held-out score that falls while rewards rise is both."""


@pytest.mark.parametrize(("name", "campaign"), SUSPECT.values(), ids=SUSPECT)
def test_what_is_worth_a_look_is_a_warning_of_that_name_and_no_alarm(name, campaign):
    diagnosis, found = diagnosis_of(campaign), finding(name, campaign)
    assert found.severity is Severity.WARN
    assert diagnosis.severity is Severity.WARN, diagnosis.verdict
    assert found.text in diagnosis.verdict


def test_every_detector_has_a_campaign_that_it_finds():
    planted = {name for name, _ in [*PLANTED.values(), *SUSPECT.values()]}
    assert planted == {detector.name for detector in DETECTORS}


def test_every_detector_says_what_it_looks_at_and_speaks_from_nothing_else():
    """A detector whose own series are gone is blind, or has nothing to say; it never makes up a finding."""
    for detector in DETECTORS:
        for _, campaign in [*PLANTED.values(), *SUSPECT.values()]:
            hidden = {name: None for name in HEALTHY | dict(campaign.series) if _reads(detector, name)}
            seen = Campaign({**campaign.series, **hidden}, (), campaign.steps)
            found = finding(detector.name, seen)
            if detector.name != "measurements":
                assert found.severity <= Severity.BLIND, (detector.name, found)


def _reads(detector, name):
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in detector.looks_at)


def test_the_page_of_detectors_is_the_code_s():
    page = PAGE.read_text()
    for detector in DETECTORS:
        row = next((line for line in page.splitlines() if line.startswith(f"| `{detector.name}` |")), None)
        assert row is not None, f"docs/diagnosis.md has no row for {detector.name}"
        assert [cell.strip() for cell in row.strip("|").split("|")] == [
            f"`{detector.name}`",
            ", ".join(f"`{name}`" for name in detector.looks_at),
            detector.threshold,
            detector.action,
            detector.is_not,
        ]
    assert len(re.findall(r"^\| `", page, re.M)) == len(DETECTORS)


def test_the_report_says_what_to_do_about_what_it_found():
    name, campaign = PLANTED["turns that explode"]
    text = render("t", diagnosis_of(campaign), campaign.records(), campaign.evaluations)
    detector = next(one for one in DETECTORS if one.name == name)
    assert f"- **turns** ({detector.threshold}): {detector.action}. Not to be taken for {detector.is_not}." in text
    assert "40.0% of late turns send again what the turn before sent" in text
    assert "## What to do" not in render("t", diagnosis_of(Campaign()), records(), RISING)


def test_a_calibrated_critic_over_a_flat_policy_tells_what_leaves_it_nothing_to_give():
    found = finding("critic_without_policy", PLANTED["a critic that explains a policy that stands"][1])
    assert found.evidence == (
        "70% of late trials earned nothing at all",
        "6.2 assertions a trial can earn credit",
        "late advantages have a deviation of 0.1",
    )


def test_faults_are_named_by_cause():
    found = finding("infrastructure", changed(rollout__infra_faults=5.0, fault__sampler=4.0, fault__image=1.0))
    assert "(image 24, sampler 96)" in found.text


def test_faults_that_a_task_brings_about_are_told_apart():
    campaign = changed(rollout__infra_faults=5.0, fault__sampler=4.0, fault__verifier_killed=1.0)
    assert "; 24 are of kinds that one task brings about again and again" in finding("infrastructure", campaign).text


def test_a_starved_class_needs_enough_cancellations_to_be_believed():
    few = Campaign({"rollout/share_gap/difficulty.hard": -0.06, "rollout/cancelled": 0.5})
    assert finding("cancellation", few).severity is Severity.OK


def gaps_of(seed, classes=10, launched=48, batch=24, steps=5, slow=0.0):
    """Share gaps of steps that cut their tail; a class that is `slow` is cut more often."""
    drawn, found = random.Random(seed), {}
    for step in range(steps):
        trials = [drawn.randrange(classes) for _ in range(launched)]
        kept = sorted(trials, key=lambda each: drawn.random() + slow * (each == 0))[:batch]
        for each in set(trials):
            gap = kept.count(each) / batch - trials.count(each) / launched
            found.setdefault(f"rollout/share_gap/category.{each}", {})[step] = gap
    return {name: (lambda step, of=of: of.get(step, float("nan"))) for name, of in found.items()}


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_no_class_is_starved_by_chance_alone(steps):
    # Every fourth leg of five steps had one, and every leg of one step.
    shares = {"rollout/share_gap/difficulty.hard": None, "rollout/share_gap/difficulty.easy": None}
    cut = {**shares, "rollout/cancelled": 24.0}
    by_chance = [Campaign({**cut, **gaps_of(seed, steps=steps)}, steps=steps) for seed in range(40)]
    assert sum(finding("cancellation", campaign).severity is Severity.WARN for campaign in by_chance) <= 5
    slow = [Campaign({**cut, **gaps_of(seed, steps=10, slow=1.0)}, steps=10) for seed in range(20)]
    assert all(finding("cancellation", campaign).severity is Severity.WARN for campaign in slow)


def test_a_run_that_rewrote_no_history_is_well():
    found = finding("compactions", changed(rollout__compactions_attempted=0.0, rollout__compactions_succeeded=0.0))
    assert (found.severity, found.text) == (Severity.OK, "no history had to be rewritten")


def test_the_split_that_would_balance_a_step_is_told():
    found = finding("balance", SUSPECT["a trainer that waits"][1])
    assert found.evidence == ("balanced with 3.21 × the samplers to a trainer there are now (Eq 22, R/n = C/(G-n))",)


def test_a_leg_that_still_runs_is_not_stale_after_one_long_step():
    running = Campaign(now_ms=60_000 * 27)
    assert finding("measurements", running).severity is Severity.OK
    assert diagnosis_of(running).severity is Severity.OK


def test_what_was_not_measured_is_blind_and_not_ok():
    unseen = changed(tito__drift=None)
    assert (finding("drift", unseen).severity, finding("drift", unseen).value) == (Severity.BLIND, None)
    assert diagnose([], []).severity is Severity.BLIND
    assert finding("reward", Campaign(steps=3)).severity is Severity.BLIND


def test_nan_is_not_a_measurement():
    assert finding("critic", changed(critic__explained_variance=float("nan"))).severity is Severity.BLIND


def test_a_step_that_was_logged_twice_counts_once():
    twice = diagnose(records() + records(), RISING)
    found = next(one for one in twice.findings if one.name == "infrastructure")
    assert found.text.startswith("0 of 1680 ")


def test_a_flat_policy_is_not_a_collapsed_one():
    assert finding("entropy", Campaign(FLAT, NOT_MOVED)).severity is Severity.OK


def alarms(name, values, **series):
    """How many of fifty runs of noisy rewards a detector is red in."""
    found = 0
    for seed in range(50):
        noise = random.Random(seed)
        rewards = [value + noise.gauss(0, 0.03) for value in values]
        campaign = Campaign({"rollout/reward_mean": rewards.__getitem__, **series}, steps=len(values))
        found += name in reds(diagnosis_of(campaign))
    return found


@pytest.mark.parametrize("steps", [6, 9, 12, 30])
def test_noise_alone_is_no_falling_reward_and_no_flat_policy(steps):
    explained = {"critic/explained_variance": 0.7}
    assert alarms("reward", [0.5] * steps) <= 1
    assert alarms("critic_without_policy", [0.3 + 0.01 * step for step in range(steps)], **explained) == 0


def test_steps_that_happen_to_be_equal_are_no_certainty():
    # Pass rates of a small batch: one flat policy in forty was an alarm after six steps.
    drawn, found = random.Random(3), []
    for _ in range(400):
        rates = [sum(drawn.random() < 0.1 for _ in range(16)) / 16 for _ in range(6)]
        found.append(finding("reward", Campaign({"rollout/reward_mean": rates.__getitem__}, steps=6)).severity)
    assert found.count(Severity.RED) <= 2
    for steps in (24, 48):
        fallen = {"rollout/reward_mean": lambda step, half=steps // 2: 0.3 if step < half else 0.2}
        assert finding("reward", Campaign(fallen, steps=steps)).severity is Severity.RED


def test_a_fall_beyond_the_noise_and_a_flat_policy_are_found_in_noise_once_there_are_steps_enough():
    assert alarms("reward", [0.5 - 0.01 * step for step in range(24)]) >= 48
    flat = {**FLAT, "critic/explained_variance": 0.7}
    del flat["rollout/reward_mean"]
    assert alarms("critic_without_policy", [0.3] * 60, **flat) >= 45


@pytest.mark.parametrize(("done", "severity"), [((1, 0), "OK"), ((3, 0), "WARN"), ((5, 0), "RED"), ((40, 28), "OK")])
def test_a_few_summaries_that_fail_are_no_alarm(done, severity):
    tried, succeeded = done
    series = {"compactions_attempted": float(tried), "compactions_succeeded": float(succeeded)}
    campaign = Campaign({f"rollout/{name}": value for name, value in series.items()}, steps=1)
    assert finding("compactions", campaign).severity is Severity[severity]


def test_a_run_that_stands_still_after_its_first_step_is_found():
    assert finding("measurements", Campaign(steps=1, now_ms=86_400_000)).severity is Severity.RED
    assert finding("measurements", Campaign(steps=1, now_ms=10_000)).severity is Severity.OK
