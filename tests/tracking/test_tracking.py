"""Whatever is said twice to MLflow, from whichever process, is recorded once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.errors import ServiceError
from components.tracking import (
    Checkpoint,
    Registry,
    Run,
    Trace,
    Tracker,
    Trajectory,
    TurnView,
    campaigns,
    log_trajectory,
)
from components.tracking.traces import MAX_SPANS

ROOT = Path(__file__).parents[2]
METRICS = {"rollout/reward_mean": 0.5, "gap/engine_token_mean": 0.01, "critic/explained_variance": math.nan, "x": None}


def test_a_campaign_is_a_parent_run_with_its_whole_configuration_and_is_found_again(tracker: Tracker) -> None:
    first = tracker.campaign("found-again", {"seed": 1, "rl": {"legs": 2}}, {"prefect.flow_run_id": "a"})
    again = tracker.campaign("found-again", {"seed": 1, "rl": {"legs": 2}}, {"prefect.flow_run_id": "b"})
    assert again == first
    run = tracker.client.get_run(first.run_id)
    assert run.data.params == {"seed": "1", "rl.legs": "2"}
    assert run.data.tags["prefect.flow_run_id"] == "b"


def test_a_stage_is_a_child_of_its_campaign(tracker: Tracker, parent: Run) -> None:
    child = tracker.stage(parent, "sft", {})
    assert tracker.client.get_run(child.run_id).data.tags["mlflow.parentRunId"] == parent.run_id
    assert tracker.stage(parent, "sft", {}) == child
    assert tracker.stage(parent, "rl", {}) != child


def test_threads_that_ask_for_the_same_run_at_once_get_one(tracker: Tracker, parent: Run) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: tracker.stage(parent, "evaluate", {}), range(4)))
    assert len(set(runs)) == 1


def test_a_step_logged_twice_is_there_once_and_what_was_not_measured_is_absent(tracker: Tracker, parent: Run) -> None:
    assert tracker.log_step(parent, 3, METRICS, 1_700_000_000_123)
    assert not tracker.log_step(parent, 3, METRICS, 1_700_000_000_123)
    history = tracker.client.get_metric_history(parent.run_id, "rollout/reward_mean")
    assert [(item.step, item.timestamp, item.value) for item in history] == [(3, 1_700_000_000_123, 0.5)]
    logged = tracker.client.get_run(parent.run_id).data.metrics
    assert set(logged) == {"rollout/reward_mean", "gap/engine_token_mean", "time/committed_ms"}


def test_every_part_of_a_step_is_logged_and_once(tracker: Tracker, parent: Run) -> None:
    # The numbers of a night's suites, and its comparisons, were taken for the step of the held-out tasks, and dropped.
    for value in (1.0, 2.0):
        fresh = Tracker(tracker.uri)
        for part in (None, "tb.t1_table.harbor", "tb.t1_table.harbor.vs_previous"):
            assert fresh.log_step(parent, 5, {f"of/{part}": value}, 1_000, part) == (value == 1.0)
    logged = tracker.client.get_run(parent.run_id).data.metrics
    assert {name: value for name, value in logged.items() if name.startswith("of/")} == {
        "of/None": 1.0,
        "of/tb.t1_table.harbor": 1.0,
        "of/tb.t1_table.harbor.vs_previous": 1.0,
    }


@pytest.mark.nightly
def test_processes_that_open_a_new_database_at_once_all_can(tmp_path: Path) -> None:
    """MLflow's own table creation is not safe against itself: `table … already exists`."""
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    command = [sys.executable, "-c", f"from components.tracking import Tracker; Tracker({uri!r})"]
    started = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors


def test_a_step_committed_again_at_another_time_is_not_doubled(tracker: Tracker, parent: Run) -> None:
    tracker.log_step(parent, 1, {"loss": 1.0}, 1_000)
    fresh = Tracker(tracker.uri)
    assert not fresh.log_step(parent, 1, {"loss": 2.0}, 2_000)
    assert [item.value for item in fresh.client.get_metric_history(parent.run_id, "loss")] == [1.0]


def test_a_step_costs_one_request_however_many_came_before(tracker: Tracker, parent: Run) -> None:
    fresh = Tracker(tracker.uri)
    asked: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return getattr(tracker.client, name)

    fresh.client = Counting()
    for step in range(30):
        assert fresh.log_step(parent, step, {f"metric/{number}": float(step) for number in range(100)}, step)
        assert not fresh.log_step(parent, step, {"metric/0": 0.0}, step)
    assert asked == ["get_metric_history", *["log_batch"] * 30]


def test_files_are_replaced_and_pools_are_named_once(tracker: Tracker, parent: Run) -> None:
    for data in (b"one", b"two"):
        tracker.log_bytes(parent, "figures/gap.png", data)
        tracker.log_pool(parent, "pool", "d" * 64, "store/pool")
    assert [item.path for item in tracker.client.list_artifacts(parent.run_id, "figures")] == ["figures/gap.png"]
    assert Path(tracker.client.download_artifacts(parent.run_id, "figures/gap.png")).read_bytes() == b"two"
    (item,) = tracker.client.get_run(parent.run_id).inputs.dataset_inputs
    assert item.dataset.name == "pool"


def test_a_table_is_what_mlflow_takes_for_one_and_is_replaced(tracker: Tracker, parent: Run) -> None:
    for turns in (3, 4):
        tracker.log_table(parent, "ledger/leg-1.json", [{"trial": "a", "turns": turns}, {"trial": "b", "turns": None}])
    tracker.log_table(parent, "ledger/leg-2.json", [{"trial": "c", "turns": 1}])
    loaded = tracker.client.load_table(parent.experiment_id, "ledger/leg-1.json", [parent.run_id])
    assert loaded["trial"].tolist() == ["a", "b"]
    assert loaded["turns"].fillna(0).tolist() == [4, 0]
    shown = json.loads(tracker.client.get_run(parent.run_id).data.tags["mlflow.loggedArtifacts"])
    assert shown == [{"path": f"ledger/leg-{leg}.json", "type": "table"} for leg in (1, 2)]


def test_aliases_point_to_checkpoints_and_best_moves_only_upwards(tracker: Tracker, parent: Run) -> None:
    registry = Registry(tracker, "aliases")
    base, leg = Checkpoint("base", "store/base", "base", 0), Checkpoint("leg-1", "store/leg-1", "leg-1", 10)
    assert registry.register(parent, base, ("base",)) == registry.register(parent, base, ("base",))
    assert registry.evaluated("base", 0.2)
    registry.register(parent, leg, ())
    assert not registry.evaluated("leg-1", 0.1)
    pointed = {alias: registry.alias(alias) for alias in ("base", "latest", "best", "sft")}
    assert pointed == {"base": base, "latest": leg, "best": base, "sft": None}
    assert registry.evaluated("leg-1", 0.3)
    assert registry.alias("best") == leg
    assert campaigns(tracker) == ["aliases"]


def test_a_trajectory_is_one_trace_with_a_span_a_turn_and_the_true_times(tracker: Tracker, parent: Run) -> None:
    turns = [TurnView("$ ", "ls\n", 100, 4, -0.5, 1_000 * n, 1_000 * n + 500) for n in (1, 2, 3)]
    trajectory = Trajectory("trial-7", "count-3", "Count the files.", "completed", 0.15, 3, 4, turns)
    logged = log_trajectory(tracker, parent, trajectory, step=2, tags={"longshell.page": "https://x/page"})
    again = log_trajectory(tracker, parent, trajectory, step=2)
    assert logged is not None
    assert again == Trace(logged.trace_id, is_new=False)
    assert logged.is_new
    (trace,) = tracker.client.search_traces(
        locations=[parent.experiment_id], filter_string="tags.`longshell.trial_id` = 'trial-7'"
    )
    assert [span.name for span in trace.data.spans] == ["count-3", "turn 0", "turn 1", "turn 2"]
    assert (trace.info.trace_id, trace.info.tags["longshell.page"]) == (logged.trace_id, "https://x/page")
    assert trace.info.execution_duration == 2_500
    assert trace.info.request_metadata["mlflow.sourceRun"] == parent.run_id


@pytest.mark.nightly
def test_a_trace_is_bounded_however_long_the_trajectory_was(tracker: Tracker, parent: Run) -> None:
    turns = [TurnView("$" * 1_000_000, f"key {n}", 100, 4, -0.5) for n in range(2 * MAX_SPANS)]
    log_trajectory(tracker, parent, Trajectory("long", "t", "i" * 1_000_000, "completed", None, 0, 0, turns), step=2)
    (trace,) = tracker.client.search_traces(
        locations=[parent.experiment_id], filter_string="tags.`longshell.trial_id` = 'long'"
    )
    root, *spans = trace.data.spans
    assert [span.name for span in spans] == [f"turn {n}" for n in [*range(50), *range(150, 200)]]
    assert root.outputs["turns"] == 200
    assert len(trace.to_json()) < 1_000_000
    assert "characters left out" in spans[0].inputs["screen"]


def test_a_finished_campaign_is_not_opened_again_by_what_belongs_to_it_and_a_stage_is(tracker: Tracker) -> None:
    def status(run: Run) -> str:
        return str(tracker.client.get_run(run.run_id).info.status)

    campaign = tracker.campaign("nightly", {}, {})
    stage = tracker.stage(campaign, "evaluate", {})
    for run in (campaign, stage):
        tracker.end(run)
    again = tracker.campaign("nightly", {}, {})
    assert (again.run_id, status(again)) == (campaign.run_id, "FINISHED")
    assert status(tracker.stage(again, "evaluate", {})) == "RUNNING"
    tracker.end(campaign, failed=True)
    assert status(tracker.campaign("nightly", {}, {})) == "RUNNING"


def test_what_mlflow_says_of_an_address_is_told_without_its_password() -> None:
    address = "longshell:hunter2@db.internal/mlflow"
    with pytest.raises(ServiceError, match="unsupported URI") as caught:
        Tracker(address)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
