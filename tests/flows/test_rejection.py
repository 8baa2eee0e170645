"""SFT on a teacher's trials that passed, by `flows.sft` on Prefect and Ray: its job is killed, and nothing is paid for
twice. Nightly."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path

import pytest

from components.config import load
from components.demonstrations.demonstrator import ORACLE, Demonstrator
from components.learning.corpus import CORPUS, load_corpus
from components.pool import GeneratedTask, Split, generate
from components.tracking import Registry, Tracker
from tests.flows.test_audited import job_of
from tests.flows.test_campaign import ROOT, Campaign
from tests.jobs.conftest import SMALL
from tests.rejection.parts import Messages, ScriptedTeacher
from tests.waiting import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.timeout(1200)]
TASKS, ATTEMPTS, CONCURRENCY = 10, 2, 2
LOST = 3
"""Of the pool's tasks, those that the teacher does not know."""


class Knowing:
    """A teacher who solves the tasks of a pool, but for the first of them."""

    def __init__(self, tasks: list[GeneratedTask]) -> None:
        longest = sorted(tasks, key=lambda task: -len(task.instruction))
        self._known = {task.instruction: (task.task_id, Demonstrator(task, ORACLE, 1)) for task in longest}

    def __call__(self, messages: Messages) -> str:
        time.sleep(0.1)
        asked = messages[0]["content"]
        name, answer = next(found for instruction, found in self._known.items() if instruction in asked)
        turn = sum(message["role"] == "assistant" for message in messages)
        known = int(name.rpartition("-")[2]) >= LOST
        return answer(turn if known else len(name), messages[-1]["content"])


def test_a_killed_job_goes_on_and_sft_learns_from_what_the_teacher_solved(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, jobs="components.jobs")
    drawn = load(ROOT / "configs" / "miniature.yaml", SMALL)
    teacher = Knowing(list(islice(generate(drawn.pool, Split.TRAIN, seed=drawn.seed), TASKS)))
    with ScriptedTeacher(teacher) as asked:
        settings = {"attempts": ATTEMPTS, "per_task": None, "teacher": {**asked.settings(), "api_key_env": None}}
        wanted = ("sft.demonstrations=null", f"sft.rejection={json.dumps(settings)}", "ppo.critic.warmup=null")
        wanted += (f"rollout.concurrency={CONCURRENCY}",)
        flow = campaign.start(*SMALL, *wanted, name="sft")
        eventually(lambda: len(asked.asked) >= TASKS, within_s=600, told=campaign.errors)
        killed = job_of("rejection", campaign.store.url)
        assert killed is not None
        killed.kill()
        assert flow.wait(timeout=900) == 0, campaign.errors()
        once = len(asked.asked)
        assert campaign.run(*SMALL, *wanted, name="sft")[0] == 0, campaign.errors()
        assert len(asked.asked) == once, "a second run of the flow finds everything made"

    store, prefix = campaign.store, "campaigns/miniature-s1"
    results = {key.split("/")[3]: store.get_json(key) for key in store.list(f"{prefix}/jobs") if "/result.json" in key}
    (found,) = (result for name, result in results.items() if "-rejection-" in name)
    (tuned,) = (result for name, result in results.items() if "-sft-" in name)
    assert (found["tried"], found["graded"], found["passes"]) == (TASKS * ATTEMPTS, TASKS * ATTEMPTS, ATTEMPTS)
    assert found["left_out"]["bar"] == LOST * ATTEMPTS, "the rest was solved"
    assert 0 < found["kept"] == found["passed"] - sum(found["left_out"].values()) + found["left_out"]["bar"]
    turns = sum(row["turns"] for row in store.get_json(found["trials"]))
    assert turns <= once <= turns + CONCURRENCY * drawn.harness.max_turns, "at most what was under way is asked again"
    samples = load_corpus(store.tree(found["samples"]) / CORPUS)
    assert len(samples) == found["streams"] == tuned["samples"]["n"]

    tracker = Tracker(campaign.tracking)
    run = tracker.stage(tracker.campaign("miniature-s1", {}, {}), "rejection", {})
    logged = tracker.client.get_run(run.run_id).data.metrics
    assert logged["rejection/kept"] == found["kept"]
    history = tracker.client.get_metric_history(run.run_id, "rollout/pass_rate")
    assert [item.step for item in history] == list(range(ATTEMPTS)), "no pass twice"
    made = Registry(tracker, "miniature-s1").alias("sft")
    assert made is not None
    assert made.key == tuned["checkpoint"]
    assert store.exists(made.key)
    campaign.close()
