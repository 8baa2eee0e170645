"""An audited pool by real services: six flow tasks, six jobs, one of which is killed; nothing is paid for twice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from components.pool import Pool
from components.tracking import Tracker
from tests.curation.scripted_judge import ScriptedJudge, opinion
from tests.flows.test_campaign import Campaign
from tests.waiting import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.timeout(900)]
TASKS, SAMPLES, CONCURRENCY = 14, 3, 2


def script(user: str, _: int) -> str:
    time.sleep(0.2)
    if user.endswith("Rewrite the instruction."):
        line = next(line for line in user.split("\n") if line.startswith("| "))
        return json.dumps({"instruction": f"Repaired. {line[2:]}"})
    return opinion(0.9 if "| Repaired." in user or user.count("file ") % 2 else 0.7)


def job_of(stage: str, store: str) -> psutil.Process | None:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"components.jobs.{stage}" in words and any(word.startswith(store) for word in words):
            return process
    return None


def test_a_killed_audit_goes_on_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, jobs="components.jobs")
    with ScriptedJudge(script) as judge:
        settings = {**judge.settings(), "api_key_env": None, "concurrency": CONCURRENCY}
        small = ("pool.train_tasks=14", "rollout.batch=4", "pool.heldout_tasks=2", "pool.max_subtasks=2")
        small += ("evaluation.trials=2", "evaluation.leg_trials=2", f"pool.audit={json.dumps({'judge': settings})}")
        flow = campaign.start(*small, name="curate")
        eventually(lambda: len(judge.requests) >= 7)
        killed = job_of("audit", campaign.store.url)
        assert killed is not None
        killed.kill()
        assert flow.wait(timeout=600) == 0, campaign.errors()
        once = len(judge.requests)
        assert campaign.run(*small, name="curate") == (0, "")
        assert len(judge.requests) == once, "a second run of the flow finds everything made"
    store, prefix = campaign.store, "campaigns/miniature-s1"
    repairs = store.get_json(f"{prefix}/repairs.json")
    needed = SAMPLES * TASKS + len(repairs) * (1 + SAMPLES)
    assert needed <= once <= needed + CONCURRENCY, "at most what was under way is asked again"
    assert 0 < len(repairs) < TASKS
    assert len(Pool(store.tree(f"{prefix}/pool") / "train")) == TASKS
    tracker = Tracker(campaign.tracking)
    parent = tracker.campaign("miniature-s1", {}, {})
    audited = tracker.client.get_run(tracker.stage(parent, "audit", {}).run_id).data.metrics
    assert audited["audit/accepted"] == TASKS - len(repairs)
    assert audited["audit/borderline"] == len(repairs)
    assert audited["audit/cost_usd"] == pytest.approx(0.002 * SAMPLES * TASKS)
    again = tracker.client.get_run(tracker.stage(parent, "reaudit", {}).run_id).data.metrics
    assert again["reaudit/accepted"] == len(repairs)
    campaign.close()
