"""The parts of flow tasks that need no service: what is retried, what is mirrored, what a name stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from components.artifacts import LocalStore
from components.cluster import REPOSITORY, JobSpec
from components.config import CampaignConfig, load
from components.errors import ConfigError, DamagedError, Failure, JobFailed, ServiceError, StopReason
from components.naming import batch_key
from components.records import Reward, TaskRef, Trial, Turn, VerifierReport
from components.rollout import Ledger, Origin, Outcome, save_batch
from components.tracking import Run, Tracker
from flows.campaign import campaign as campaign_flow
from tasks import campaign, drive, launch, mirror, summary, trajectories
from tasks.ledger import log_ledger
from tasks.mirror import Mirror, Steps
from tasks.site import Site
from tasks.trajectories import log_trajectories
from tests.diagnostics.trajectories import BATCH, CAMPAIGN, stored_campaign


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def miniature(*overrides: str) -> CampaignConfig:
    return load(REPOSITORY / "configs" / "miniature.yaml", overrides)


def test_one_name_stands_for_one_configuration(store: LocalStore) -> None:
    campaign.check_claim(miniature("rl.legs=9"), store)  # Looking takes nothing.
    started = campaign.claim(miniature(), store)
    assert campaign.claim(miniature(), store) == started
    with pytest.raises(ConfigError, match=r"(?s)choose another name.*rl\.legs: was \d+, is 9"):
        campaign.claim(miniature("rl.legs=9"), store)
    campaign.claim(miniature("rl.legs=9", "name=other"), store)
    key = campaign.claim_key("miniature-s1")
    older = store.get_json(key)
    del older["config"]["rollout"]["reattach_s"]
    store.put_json(key, older)
    campaign.check_claim(miniature(), store)  # It was begun before there was such a key.
    store.put_json(key, {**older, "config": {**older["config"], "gone": 1}})
    with pytest.raises(ConfigError, match="gone: was 1, is None"):
        campaign.check_claim(miniature(), store)
    campaign.claim(miniature("seed=2"), store)


def test_a_model_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder /no/such"):
        campaign.check_model(miniature("model.path=/no/such", "base=null"))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        campaign.check_model(miniature(f"model.path={tmp_path}", "base=null"))


LARGE = ("model.hidden_size=8192", "model.num_hidden_layers=64", "model.num_experts=512")


def test_a_campaign_that_this_machine_cannot_hold_is_refused_unless_another_one_runs_it(tmp_path: Path) -> None:
    home = {"LONGSHELL_HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"does not fit: .* GiB of this machine; \w+ decides"):
        campaign.check_plan(miniature(*LARGE), Site.current(home))
    campaign.check_plan(miniature(*LARGE), Site.current({**home, "LONGSHELL_RAY_JOBS": "http://cluster:8265"}))
    campaign.check_plan(miniature(), Site.current(home))


def test_the_command_line_refuses_it_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LONGSHELL_RAY_JOBS", raising=False)
    config = str(REPOSITORY / "configs" / "miniature.yaml")
    assert launch.main(campaign_flow, ["--config", config, *LARGE]) == 2
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_the_site_is_what_the_environment_says(tmp_path: Path) -> None:
    site = Site.current({"LONGSHELL_HOME": str(tmp_path), "LONGSHELL_PREFECT_PORT": "4321", "LONGSHELL_RAY_JOBS": "r"})
    assert site.store_url == str(tmp_path / "store")
    assert site.ports == {"prefect": 4321}
    assert site.service("ray") == "r"
    assert site.service("prefect") is None
    with pytest.raises(ConfigError, match="LONGSHELL_RAY_PORT: 'x' is not a port number"):
        Site.current({"LONGSHELL_RAY_PORT": "x"})
    with pytest.raises(ServiceError, match="no Ray cluster"):
        Site.current({"LONGSHELL_HOME": str(tmp_path)}).cluster(site.store())


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tracker, Run, list[Any]]:
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts")
    shown: list[Any] = []
    monkeypatch.setattr(mirror.tracking, "tracker", lambda: tracker)
    monkeypatch.setattr(mirror, "create_progress_artifact", lambda *a, **k: shown.append((*a, k["description"])))
    monkeypatch.setattr(mirror, "update_progress_artifact", lambda _, *a, **k: shown.append((*a, k["description"])))
    return tracker, tracker.campaign("mirrored", {}, {}), shown


def commit(store: LocalStore, step: int) -> None:
    metrics = {"rollout/reward_mean": 0.5 + step, "critic/explained_variance": None}
    record = {"step": step, "total": 2, "timestamp_ms": 1_000 * step, "metrics": metrics}
    store.put_json(f"c/rl/steps/{step:06d}/record.json", record)


def test_committed_steps_of_a_leg_are_mirrored_once_and_progress_is_told(store: LocalStore, watched) -> None:
    tracker, run, shown = watched
    steps = Steps("c/rl/steps", first=2, end=4, title="m-s1 rl 2")
    store.put_bytes("c/rl/steps/000002/state", b"")
    following = Mirror(store, steps, run)
    following.poll()
    assert shown == []
    for step in (1, 2):  # Step 1 is of the leg before.
        commit(store, step)
    following.poll()
    following.poll()
    commit(store, 3)
    following.poll()
    Mirror(store, steps, run).poll()  # A retried task begins anew.
    history = tracker.client.get_metric_history(run.run_id, "rollout/reward_mean")
    assert [(item.step, item.timestamp, item.value) for item in history] == [(2, 2_000, 2.5), (3, 3_000, 3.5)]
    assert [percent for percent, _ in shown] == [50.0, 100.0, 100.0]
    assert shown[0][1].startswith("m-s1 rl 2: step 1 of 2, reward 2.5, about ")
    assert shown[1][1] == "m-s1 rl 2: step 2 of 2, reward 3.5"


def test_the_ledger_of_a_leg_is_two_tables_of_its_run(store: LocalStore, watched) -> None:
    tracker, run, _ = watched
    log_ledger(store, run, "c", 1, range(2))  # There is none: no table is made up.
    for step in range(2):
        ledger = Ledger(step)
        ledger.launch(f"t{step}", TaskRef("p", "k", "d", "files"), 1, origin=Origin.DRAWN)
        ledger.end(f"t{step}", Outcome.ADMITTED, turns=4)
        store.put_json(batch_key("c", "rl", step, "ledger"), ledger.records())
    log_ledger(store, run, "c", 1, range(2))
    log_ledger(store, run, "c", 1, range(2))
    rows = tracker.client.load_table(run.experiment_id, "ledger/leg-1.json", [run.run_id])
    assert rows["trial_id"].tolist() == ["t0", "t1"]
    classes = tracker.client.load_table(run.experiment_id, "ledger/leg-1-classes.json", [run.run_id])
    turns = classes[classes["column"] == "turns"]
    assert (turns["class"].tolist(), turns["admitted"].tolist()) == (["4 to 7"], [2])


def _away(*_: object) -> None:
    raise ServiceError("MLflow is away")


class FailingCluster:
    """Whose jobs commit a step, and fail."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store

    def follow(self, *_: object) -> dict[str, Any]:
        commit(self.store, 0)
        raise JobFailed("m-s1-rl-1", "FAILED", "ERROR ConfigError: x", Failure.REFUSED)


def test_a_failed_job_is_a_failed_run_and_its_own_failure_is_raised_though_mlflow_is_away(
    store: LocalStore, watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, run, _ = watched
    told: list[str] = []
    spec = JobSpec("rl", "m-s1", 1, {}, {})

    def follow() -> str:
        following = Mirror(store, Steps("c/rl/steps", first=0, end=2, title="m-s1 rl 1"), run)
        with pytest.raises(JobFailed, match="m-s1-rl-1") as caught:
            drive._follow(FailingCluster(store), spec, "m-s1-rl-1", lambda _, text: told.append(text), following, run)
        assert caught.value.failure is Failure.REFUSED
        return str(tracker.client.get_run(run.run_id).info.status)

    with monkeypatch.context() as patch:
        patch.setattr(tracker, "log_step", _away)
        assert follow() == "RUNNING"
    assert told == ["MLflow does not show that m-s1-rl-1 failed: MLflow is away"]
    assert follow() == "FAILED"
    assert len(told) == 1


def test_a_state_that_a_job_refused_is_told_in_the_log_and_on_its_run(watched) -> None:
    tracker, run, _ = watched
    told: list[str] = []
    states = [{"step": 3, "cause": "x has changed", "continued_at": 3, "index": 2}]
    drive._tell_refused(states, run, 2, lambda text, *values: told.append(text % values))
    drive._tell_refused([], run, 3, lambda text, *values: told.append(text % values))
    assert told == ["the state after step 3 was refused (x has changed): the job continued at step 3"]
    tags = tracker.client.get_run(run.run_id).data.tags
    assert json.loads(tags["longshell.refused_states.2"]) == states
    assert "longshell.refused_states.3" not in tags


def test_the_table_is_aligned_and_shows_what_was_not_measured_as_a_dash() -> None:
    row = dict.fromkeys(summary.COLUMNS)
    text = summary.render([{**row, "stage": "base", "pass rate": 0.25, "turns": 4.0}])
    header, rule, line = text.splitlines()
    assert len(header) == len(rule) == len(line)
    assert line.split() == ["base", "25.0%", "–", "–", "–", "4.00", "–", "–", "–"]


def test_a_finished_campaign_says_on_how_many_trials_and_how_long_it_took_in_all(store: LocalStore) -> None:
    # A newcomer took a leg on 64 tasks and the last one on 256 for a loss, and minutes that were of training for all.
    config = load(REPOSITORY / "configs" / "miniature.yaml")
    rows = [{"stage": "leg-1", "pass rate": 0.9, "trials": 64, "minutes": 2.0}, {"stage": "older", "minutes": 1.0}]
    store.put_json("campaigns/miniature-s1/table.json", {"rows": rows, "links": {}})
    store.put_json("campaigns/miniature-s1/results.json", {"minutes": 15.59})
    _, text = summary.finished(config, store)
    header, _, leg, older, *rest = text.splitlines()
    assert header.split()[:6] == ["stage", "pass", "rate", "±", "error", "trials"]
    assert leg.split()[:4] == ["leg-1", "90.0%", "–", "64"]
    assert older.split()[:4] == ["older", "–", "–", "–"], "a table of before trials were told"
    assert "minutes: 15.6 in all; of a row, those that made its checkpoint" in rest
    (Path(store.url) / "campaigns/miniature-s1/table.json").resolve().write_text("{")
    with pytest.raises(DamagedError, match=r"delete campaigns/miniature-s1/results\.json: the same command makes both"):
        summary.finished(config, store)


def test_a_damaged_claim_says_what_to_do(store: LocalStore) -> None:
    campaign.claim(miniature(), store)
    (Path(store.url) / campaign.claim_key("miniature-s1")).resolve().write_text("{")
    with pytest.raises(DamagedError, match="delete it: the same command writes it again"):
        campaign.check_claim(miniature(), store)


def test_some_stored_trials_become_traces_failures_first_each_once(store: LocalStore, watched, tmp_path: Path) -> None:
    tracker, run, _ = watched
    vocabulary = {"<unk>": 0, "$": 1, "ls": 2, "ok": 3}
    Tokenizer(WordLevel(vocabulary, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer" / "tokenizer.json")
    # The tokenizer came with the checkpoint: of a store in a bucket, the whole model was fetched for it.
    store.put_tree("campaigns/c-s1/tokenizer", tmp_path / "tokenizer")
    trials, rewards, ledger = [], [], Ledger(0)
    for number in range(8):
        task = TaskRef("pool", f"task-{number}", "d", "files")
        one = Turn(np.int32([1]), np.int32([2]), np.float32([-0.5]), None, 0, "stop")
        two = Turn(np.int32([1, 2, 3, 1]), np.int32([2]), np.float32([-0.5]), None, 0, "stop")
        report = VerifierReport({}, number >= 3, "assertions.jsonl")
        trials.append(Trial(f"trial-{number}", task, [one, two], StopReason.COMPLETED, report, None))
        rewards.append(Reward(0.1, 1, 2, number >= 3))
        ledger.launch(f"trial-{number}", task, 1, origin=Origin.DRAWN)
        ledger.end(f"trial-{number}", Outcome.ADMITTED)
    save_batch(tmp_path / "trials", trials, [], rewards, ledger)
    store.put_tree("trials", tmp_path / "trials")
    assert log_trajectories(store, run, "c-s1", "trials", 1) == 5
    assert log_trajectories(store, run, "c-s1", "trials", 1) == 0
    traces = tracker.client.search_traces(locations=[run.experiment_id])
    assert {trace.info.tags["longshell.trial_id"] for trace in traces} == {f"trial-{n}" for n in range(5)}
    last = traces[0].data.spans[2]
    assert (last.inputs["screen"], last.outputs["keystrokes"]) == ("ok $", "ls")


def test_the_trials_of_a_report_lead_to_their_pages_and_traces(watched, tmp_path: Path, monkeypatch) -> None:
    tracker, run, _ = watched
    store = stored_campaign(tmp_path)
    monkeypatch.setattr(trajectories.tracking, "_page", lambda run, place: f"http://mlflow/#/{place}")
    rows = store.get_json(f"campaigns/{CAMPAIGN}/rl/trials/000003")
    store.put_bytes("pages/plain", b"<p>page</p>")
    pages = {"plain": "pages/plain", "hostile": None}
    told = [{"step": 3, "row": row, "batch": BATCH, "page": pages[row["trial_id"]]} for row in rows]
    links = trajectories.link_trajectories(store, run, CAMPAIGN, told, "diagnosis/leg-1")
    (trace,) = tracker.client.search_traces(locations=[run.experiment_id])
    assert links == {
        "plain": {
            "page": f"http://mlflow/#/runs/{run.run_id}/artifacts/diagnosis/leg-1/trajectories/plain.html",
            "trace": f"http://mlflow/#/traces?selectedEvaluationId={trace.info.trace_id}&traceId={trace.info.trace_id}",
        }
    }
    assert trace.info.tags["longshell.page"] == links["plain"]["page"]
    assert (trace.info.tags["longshell.trial_id"], trace.info.tags["longshell.step"]) == ("plain", "3")
    kept = Path(tracker.client.download_artifacts(run.run_id, "diagnosis/leg-1/trajectories/plain.html"))
    assert kept.read_bytes() == b"<p>page</p>"
    assert trajectories.link_trajectories(store, run, CAMPAIGN, told, "diagnosis/leg-1") == links, "once"
