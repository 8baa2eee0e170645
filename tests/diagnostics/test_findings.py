"""Detectors."""

import pytest

from components.diagnostics import Evaluation, Severity, diagnose


def run(steps=12, **series):
    """Records of a healthy run; a keyword overrides a series by a value or a function of the step."""
    healthy = {
        "tito/drift": 0.0,
        "tito/reencoded_context": 0.0,
        "critic/explained_variance": lambda step: -0.4 + 0.1 * step,
        "rollout/launched": 70.0,
        "rollout/infra_faults": 0.0,
        "rollout/cancelled": 6.0,
        "rollout/graded": 64.0,
        "rollout/share_gap/difficulty.hard": -0.001,
        "rollout/share_gap/difficulty.easy": 0.001,
        "rollout/reward_mean": lambda step: 0.1 + 0.02 * step,
        "gap/engine_token_mean": 0.0001,
        "gap/frac_gt_ln2": 0.0,
        "stop/token_limit": 1.0,
        "rollout/tampered": 0.0,
        "rollout/compactions_attempted": 10.0,
        "rollout/compactions_succeeded": 9.0,
    } | {name.replace("__", "/").replace("_DOT_", "."): value for name, value in series.items()}
    return [
        {
            "step": step,
            "timestamp_ms": step,
            "metrics": {
                name: value(step) if callable(value) else value for name, value in healthy.items() if value is not None
            },
        }
        for step in range(steps)
    ]


def scores(before=0.3, after=0.8):
    return [
        Evaluation("sft", 0, {"resolved": before, "stderr": 0.03}),
        Evaluation("step-12", 12, {"resolved": after, "stderr": 0.03}),
    ]


def finding(name, records=None, evaluations=None):
    found = diagnose(records or run(), scores() if evaluations is None else evaluations)
    return next(one for one in found.findings if one.name == name)


def test_a_healthy_run_is_ok():
    diagnosis = diagnose(run(), scores())
    assert diagnosis.severity is Severity.OK
    assert diagnosis.verdict == "ok: nothing is wrong in what was measured"


@pytest.mark.parametrize(
    ("name", "series", "severity"),
    [
        ("drift", {"tito__drift": lambda step: 0.001 * (step == 4)}, Severity.RED),
        ("drift", {"rollout__rejected": lambda step: float(step == 4)}, Severity.WARN),
        ("reencoded_context", {"tito__reencoded_context": 0.026}, Severity.WARN),
        ("critic", {"critic__explained_variance": lambda step: 0.5 - 0.1 * step}, Severity.WARN),
        ("infrastructure", {"rollout__infra_faults": 5.0}, Severity.WARN),
        ("infrastructure", {"rollout__infra_faults": 20.0}, Severity.RED),
        ("cancellation", {"rollout__share_gap__difficulty_DOT_hard": -0.06}, Severity.WARN),
        ("reward", {"rollout__reward_mean": lambda step: 0.2 + 0.01 * (step % 2)}, Severity.WARN),
        ("reward", {"rollout__reward_mean": lambda step: 0.3 - 0.02 * step}, Severity.RED),
        ("engine_gap", {"gap__engine_token_mean": 0.05}, Severity.WARN),
        ("far_tokens", {"gap__frac_gt_ln2": 0.2}, Severity.RED),
        ("token_wall", {"stop__token_limit": 30.0}, Severity.WARN),
        ("compactions", {"rollout__compactions_succeeded": 1.0}, Severity.RED),
        ("tampering", {"rollout__tampered": 10.0}, Severity.WARN),
    ],
)
def test_each_detector_fires_on_its_fault_and_decides_the_verdict(name, series, severity):
    records = run(**series)
    found = finding(name, records)
    assert found.severity is severity
    assert diagnose(records, scores()).severity is severity
    assert found.text in diagnose(records, scores()).verdict


def test_faults_are_named_by_cause():
    found = finding("infrastructure", run(rollout__infra_faults=5.0, fault__sampler=4.0, fault__image=1.0))
    assert "(image 12, sampler 48)" in found.text


def test_a_starved_class_needs_enough_cancellations_to_be_believed():
    few = run(rollout__share_gap__difficulty_DOT_hard=-0.06, rollout__cancelled=0.5)
    assert finding("cancellation", few).severity is Severity.OK


def test_faults_that_a_task_brings_about_are_told_apart():
    found = finding("infrastructure", run(rollout__infra_faults=5.0, fault__sampler=4.0, fault__verifier_killed=1.0))
    assert "; 12 are of kinds that one task brings about again and again" in found.text


def test_a_run_that_rewrote_no_history_is_well():
    found = finding("compactions", run(rollout__compactions_attempted=0.0, rollout__compactions_succeeded=0.0))
    assert (found.severity, found.text) == (Severity.OK, "no history had to be rewritten")


def test_what_was_not_measured_is_blind_and_not_ok():
    found = finding("drift", run(tito__drift=None))
    assert (found.severity, found.value) == (Severity.BLIND, None)
    assert "1 detector was blind" in diagnose(run(tito__drift=None), scores()).verdict
    assert diagnose([], []).severity is Severity.BLIND
    assert finding("reward", run(steps=3)).severity is Severity.BLIND


def test_nan_is_not_a_measurement():
    assert finding("critic", run(critic__explained_variance=float("nan"))).severity is Severity.BLIND


@pytest.mark.parametrize(("after", "severity"), [(0.8, Severity.OK), (0.33, Severity.WARN), (0.1, Severity.RED)])
def test_heldout_is_compared_with_what_stood_before_rl(after, severity):
    found = finding("heldout", evaluations=scores(0.3, after))
    assert found.severity is severity
    assert found.value == pytest.approx(after - 0.3)


def test_a_step_that_was_logged_twice_counts_once():
    records = run(rollout__infra_faults=0.0)
    assert finding("infrastructure", records + records).text.startswith("0 of 840 ")
