"""What Prometheus reads of this installation, over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families

from components.artifacts import ArtifactStore, LocalStore
from components.errors import StoreError
from components.naming import campaign_key, step_key
from tasks.health import FRESH_S, registry

Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path)
    made.put_json(campaign_key("a-s1", "campaign.json"), {"started_s": 7.5, "config": {}})
    document = {"step": 3, "total": 9, "timestamp_ms": 5_000, "metrics": {"rollout/reward_mean": 0.25, "gap": None}}
    made.put_json(step_key("a-s1", "rl", 3, "record.json"), document)
    made.put_json(campaign_key("a-s1", "jobs", "a-s1-rl-1-d", "submitted-0.json"), {})
    diagnosed = {"severity": "red", "steps": 4, "told_s": 6.0}
    made.put_json(campaign_key("a-s1", "jobs", "a-s1-diagnose-1-d", "result.json"), diagnosed)
    return made


def served(open_store: Callable[[], ArtifactStore], clock: Callable[[], float]) -> Callable[[], Read]:
    """Starts the endpoint on loopback; gives a scrape of it."""
    server, _ = start_http_server(0, "127.0.0.1", registry(open_store, clock))

    def read() -> Read:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}

    return read


def test_a_scrape_tells_how_every_campaign_does(store: LocalStore) -> None:
    found = served(lambda: store, lambda: 0.0)()
    campaign, rl = ("campaign", "a-s1"), ("stage", "rl")
    assert found["longshell_store_up", ()] == 1
    assert found["longshell_campaign_finished", (campaign,)] == 0
    assert found["longshell_campaign_started_timestamp_seconds", (campaign,)] == 7.5
    assert found["longshell_step", (campaign, rl)] == 3
    assert found["longshell_step_timestamp_seconds", (campaign, rl)] == 5
    assert found["longshell_step_metric", (campaign, ("metric", "rollout/reward_mean"), rl)] == 0.25
    assert found["longshell_campaign_severity", (campaign, ("severity", "red"))] == 1
    assert found["longshell_campaign_severity", (campaign, ("severity", "ok"))] == 0
    assert found["longshell_job_attempts", (campaign, ("job", "a-s1-rl-1-d"))] == 1
    assert found["longshell_jobs_done", (campaign,)] == 1
    assert not [name for name, labels in found if ("metric", "gap") in labels], "what was not measured is absent"


def test_a_store_that_fails_is_told_and_no_old_figure_is(store: LocalStore) -> None:
    now, away = [0.0], [False]

    def open_store() -> ArtifactStore:
        if away[0]:
            raise StoreError("the bucket does not answer")
        return store

    read = served(open_store, lambda: now[0])
    assert read()["longshell_store_up", ()] == 1
    away[0] = True
    assert read()["longshell_store_up", ()] == 1, "one reading serves all who ask within it"
    now[0] += FRESH_S
    assert read() == {("longshell_store_up", ()): 0}
    away[0] = False
    now[0] += FRESH_S
    assert read()["longshell_step", (("campaign", "a-s1"), ("stage", "rl"))] == 3


@pytest.mark.parametrize(
    ("key", "document"),
    [
        (campaign_key("b-s1", "campaign.json"), {"config": {}}),
        (step_key("b-s1", "rl", 0, "record.json"), {"step": 0, "metrics": {"x": "much"}}),
        (step_key("b-s1", "rl", 0, "record.json"), []),
        (campaign_key("b-s1", "jobs", "b-s1-diagnose-0-d", "result.json"), {"verdict": "ok"}),
    ],
)
def test_a_campaign_whose_document_is_not_as_agreed_is_told_and_hides_no_other(
    store: LocalStore, key: str, document: object
) -> None:
    if not key.endswith("campaign.json"):
        store.put_json(campaign_key("b-s1", "campaign.json"), {"started_s": 7.5, "config": {}})
    store.put_json(key, document)
    found = served(lambda: store, lambda: 0.0)()
    assert found["longshell_store_up", ()] == 1
    assert found["longshell_step", (("campaign", "a-s1"), ("stage", "rl"))] == 3
    assert found["longshell_campaign_readable", (("campaign", "a-s1"),)] == 1
    assert [name for name, labels in found if ("campaign", "b-s1") in labels] == ["longshell_campaign_readable"]
    assert found["longshell_campaign_readable", (("campaign", "b-s1"),)] == 0
