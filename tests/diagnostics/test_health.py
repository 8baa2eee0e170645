"""How campaigns are doing, from the store alone."""

from __future__ import annotations

from pathlib import Path

from components.artifacts import LocalStore
from components.diagnostics.health import StageHealth, health
from components.naming import campaign_key, step_key


def record(store: LocalStore, campaign: str, stage: str, step: int, **metrics: float | None) -> None:
    document = {"step": step, "total": 9, "timestamp_ms": 1_000 * (100 + step), "metrics": metrics}
    store.put_json(step_key(campaign, stage, step, "record.json"), document)


def diagnosed(store: LocalStore, job: str, severity: str, steps: int, told_s: float = 10.0) -> None:
    document = {"severity": severity, "steps": steps, "told_s": told_s}
    store.put_json(campaign_key("a-s1", "jobs", f"a-s1-diagnose-{job}", "result.json"), document)


def test_every_campaign_is_told_by_its_last_steps_its_jobs_and_its_last_diagnosis(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_json(campaign_key("a-s1", "campaign.json"), {"started_s": 7.5, "config": {}})
    for step in (0, 2, 10):
        record(store, "a-s1", "rl", step, reward=0.1 * step, gap=None, ess=float("nan"))
    record(store, "a-s1", "sft", 3, loss=1.0)
    for attempt in range(3):
        store.put_json(campaign_key("a-s1", "jobs", "a-s1-rl-2-d", f"submitted-{attempt}.json"), {})
    diagnosed(store, "1-d", "warn", 2)
    diagnosed(store, "2-d", "red", 4)
    store.put_json(campaign_key("a-s1", "jobs", "a-s1-diagnose-2-d", "submitted-0.json"), {})
    store.put_json(campaign_key("b-s1", "campaign.json"), {"started_s": 8.0, "config": {}})
    store.put_json(campaign_key("b-s1", "results.json"), {})
    store.put_json(campaign_key("nobodys", "pool"), {})

    found = health(store)
    assert found.keys() == {"a-s1", "b-s1"}
    running, ended = found["a-s1"], found["b-s1"]
    assert running.stages == {
        "rl": StageHealth(10, 110.0, {"reward": 1.0}),
        "sft": StageHealth(3, 103.0, {"loss": 1.0}),
    }
    assert (running.started_s, running.finished, running.done, running.severity) == (7.5, False, 2, "red")
    assert running.attempts == {"a-s1-rl-2-d": 3}
    assert (ended.finished, ended.stages, ended.severity) == (True, {}, None)


def test_the_severity_is_of_the_diagnosis_that_saw_most_steps_and_of_equal_ones_of_the_newest(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_json(campaign_key("a-s1", "campaign.json"), {"started_s": 7.5, "config": {}})

    def told() -> str | None:
        return health(store)["a-s1"].severity

    diagnosed(store, "1-d", "red", 2)
    diagnosed(store, "0-by-hand", "ok", 3, 20.0)
    assert told() == "ok"
    for leg in (2, 3, 10):
        diagnosed(store, f"{leg}-d", "red", 2 * leg, 30.0 + leg)
        assert told() == "red", "what was asked for by hand after the first leg hides no later one"
    for number in range(8):
        diagnosed(store, f"0-again{number}", "warn" if number == 5 else "blind", 20, 50.0 - abs(number - 5))
    assert told() == "warn"
