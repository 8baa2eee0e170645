"""`flows.evaluate` for real: a miniature checkpoint behind the gateway, run by a real Harbor's Terminus-2. Nightly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.evaluation import aggregate
from components.rollout import load_batch
from components.tracking import Tracker
from tests.evaluation.parts import write_task
from tests.flows.test_campaign import Campaign
from tests.harness.harbor_installed import installed
from tests.jobs.conftest import SMALL
from tests.sandbox.conftest import needs_root

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1500), needs_root]
TASKS = tuple(f"write-{number}" for number in range(6))
LIMITS = (  # Terminus-2's first message takes two thousand of the miniature's tokens
    "harness.max_context_tokens=6144",
    "sampler.context_tokens=6144",
    "model.max_position_embeddings=6144",
    "trainer.micro_batch_tokens=6144",
    "evaluation.trials=2",
    "evaluation.leg_trials=2",
    "rollout.agent_timeout_s=120",
)


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    made = Campaign(tmp_path, jobs="components.jobs")
    yield made
    made.close()


@pytest.mark.parametrize("harness", ["native", "harbor"])
def test_a_night_evaluates_the_held_out_tasks_and_every_suite_and_names_who_ran_them(
    campaign: Campaign, tmp_path: Path, harness: str
) -> None:
    for number, name in enumerate(TASKS):
        write_task(tmp_path / "suite" / name, category=("text", "files")[number % 2])
    write_task(tmp_path / "suite" / "hidden", test=None)
    suites = f"evaluation.suites=[{{name: local, path: {tmp_path / 'suite'}, benchmark: lhtb}}]"
    venv = [f"evaluation.harbor.venv={installed()}"] if harness == "harbor" else []
    code, _ = campaign.run(*SMALL, *LIMITS, suites, f"evaluation.harness={harness}", *venv, name="evaluate")
    assert code == 0, campaign.errors()

    results = [campaign.store.get_json(key) for key in campaign.store.list("campaigns") if _is_evaluation(key)]
    by_suite = {result["suite"]: result for result in results}
    assert set(by_suite) == {"heldout", "local"}
    local = by_suite["local"]
    assert local["harness"].startswith(harness)
    assert (local["coverage"]["run"], local["coverage"]["unscorable"]) == (6, 1)
    assert local["headline"]["name"] == "verifier_reward"
    trials = load_batch(campaign.store.tree(local["trials"])).trials
    assert {trial.task.task_id for trial in trials} == set(TASKS), campaign.errors()
    score = aggregate(trials)
    assert (score.trials, score.faults) == (6, 0)
    assert score.turns_mean is not None
    assert score.turns_mean > 0
    assert set(score.by_category) == {"text", "files"}
    if harness == "harbor":
        kept = campaign.store.tree(local["harbor"])
        assert len(list(kept.glob("local-*/*/agent/trajectory.json"))) == 6
    tracker = Tracker(campaign.tracking)
    parent = tracker.campaign("miniature-s1", {}, {})
    run = tracker.stage(parent, "evaluate", {})
    series = f"eval/local.miniature.{harness}/resolved_of/graded"
    assert len(tracker.client.get_metric_history(run.run_id, series)) == 1


def _is_evaluation(key: str) -> bool:
    folder, _, document = key.rpartition("/")
    return document == "result.json" and "-evaluate-" in folder.rpartition("/")[2]
