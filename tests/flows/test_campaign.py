"""A whole campaign on real services, with fake stages: killed in every way, and finished all the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient

from components.artifacts import LocalStore
from components.config import load
from components.tracking import Tracker
from tasks.plan import course
from tasks.site import Site
from tasks.stack.supervisor import Stack
from tests import services
from tests.disks import small_disk
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


class Campaign:
    """`python -m flows.campaign` in a process and with a store of its own, on the session's stack or on another."""

    def __init__(
        self, folder: Path, store: Path | None = None, jobs: str = "tests.fake_jobs", site: Site | None = None
    ) -> None:
        self.folder = folder
        self.store = LocalStore(store or folder / "store")
        self._jobs = jobs
        self._home = site.home if site else services.home()
        self._stack = Stack(site, lambda line: None) if site else services.stack()
        self.tracking = services.database(folder / "mlflow.db")
        self._started: list[subprocess.Popen[str]] = []
        self._config = folder / "config.yaml"
        shutil.copy(ROOT / "configs" / "miniature.yaml", self._config)

    def start(self, *overrides: str, name: str = "campaign") -> subprocess.Popen[str]:
        record = self._stack.up(["prefect", "ray"], pin=True)
        environment = {
            **os.environ,
            "LONGSHELL_HOME": str(self._home),
            "LONGSHELL_STORE": self.store.url,
            "LONGSHELL_JOBS_PACKAGE": self._jobs,
            "MLFLOW_TRACKING_URI": self.tracking,
        }
        assert record.pinned
        command = [sys.executable, "-m", f"flows.{name}", f"--config={self._config}", *overrides]
        with (self.folder / "stderr").open("a") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._started.append(process)
        return process

    def run(self, *overrides: str, name: str = "campaign") -> tuple[int, str]:
        process = self.start(*overrides, name=name)
        output = process.communicate()[0]
        return process.returncode, output

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def trace(self) -> list[str]:
        path = self.folder / "trace"
        return [line.rpartition(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def job_pid(self, line: str) -> int:
        lines = (self.folder / "trace").read_text().splitlines()
        return int([each for each in lines if each.startswith(line)][-1].split()[-1])

    def committed(self, step: int) -> bool:
        return any(f"/rl/steps/{step:06d}/record.json" in key for key in self.store.list("campaigns"))

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    made = Campaign(tmp_path)
    yield made
    made.close()


def test_a_campaign_survives_the_death_of_its_job_and_of_its_flow_and_logs_no_step_twice(campaign: Campaign) -> None:
    (campaign.folder / "slow").touch()
    overrides = ("rl.legs=1", "rl.leg_steps=4", "ppo.critic.warmup={steps: 2, tasks: 64}")
    first = campaign.start(*overrides)
    eventually(lambda: campaign.committed(0))
    os.kill(campaign.job_pid("begin rl-1"), signal.SIGKILL)
    eventually(lambda: campaign.trace().count("begin rl-1") == 2)
    first.send_signal(signal.SIGKILL)
    first.wait()

    code, output = campaign.run(*overrides)
    assert code == 0, campaign.errors()
    trace = campaign.trace()
    assert trace.count("begin rl-1") == 2, "the second flow attached to the running job"
    assert [trace.count(f"begin {stage}-0") for stage in ("curate", "base", "sft", "warmup")] == [1] * 4

    config = load(ROOT / "configs" / "miniature.yaml", overrides)
    asked = {key.split("/")[3] for key in campaign.store.list("campaigns/miniature-s1/jobs")}
    foreseen = {job.submission_id(config).partition("<")[0]: job for job in course(config)}
    assert {next(each for each in foreseen if name.startswith(each)) for name in asked} == foreseen.keys()
    assert len(asked) == len(foreseen), "the plan tells exactly the jobs that ran, by their ids"
    for job in foreseen.values():
        assert all(campaign.store.exists(key) for key in job.leaves if job.ask.stage != "evaluate"), job

    *_, last = output.strip().splitlines()
    results = json.loads(last)
    assert results["base"] == {"pass_rate": 0.1, "stderr": 0.02, "n": 256}
    assert results["rl"]["pass_rate"] == pytest.approx(0.3)
    assert (results["seed"], results["engine_gap"], results["drift"]) == (1, 0.01, 0.0)
    assert (results["launched"], results["cancelled"]) == (70, 6)
    assert campaign.store.get_json("campaigns/miniature-s1/results.json") == results
    table = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}
    assert table["leg-1"] == ["30.0%", "2.0%", "256", "30.0%", "4.00", "1.00e-02", "6/70", "0.0"]

    tracker = Tracker(campaign.tracking)
    parent = tracker.campaign("miniature-s1", {}, {})
    run = tracker.stage(parent, "rl", {})
    history = tracker.client.get_metric_history(run.run_id, "rollout/reward_mean")
    assert sorted(item.step for item in history) == [0, 1, 2, 3]
    tags, mark = tracker.client.get_run(run.run_id).data.tags, told_to_ray(campaign, "rl-1", attempt=1)
    assert (tags["ray.submission_id"], tags["longshell.key"]) == (mark["submission_id"], mark["mlflow_key"])
    with SyncPrefectClient(api=services.stack().up(["prefect"], pin=True).services["prefect"]["url"]) as client:
        killed, ended = (UUID(each) for each in (mark["prefect_flow_run_id"], tags["prefect.flow_run_id"]))
        assert client.read_flow_run(killed).state.is_crashed(), "it lost its process, and the next start told"
        assert client.read_flow_run(ended).state.is_completed()
    warm = tracker.stage(parent, "warmup", {})
    history = tracker.client.get_metric_history(warm.run_id, "rollout/reward_mean")
    assert sorted(item.step for item in history) == [0, 1]
    scores = tracker.client.get_metric_history(parent.run_id, "eval/heldout.miniature.native/resolved")
    assert [(item.step, round(item.value, 2)) for item in scores] == [(0, 0.1), (1, 0.2), (2, 0.3)]
    assert {item.path for item in tracker.client.list_artifacts(parent.run_id, "figures")} == {"figures/gap.png"}

    assert campaign.run(*overrides) == (0, output)
    assert campaign.trace() == trace


def told_to_ray(campaign: Campaign, stage: str, attempt: int) -> dict[str, str]:
    """What an attempt of a stage was submitted with."""
    keys = campaign.store.list("campaigns/miniature-s1/jobs")
    [key] = [key for key in keys if f"-{stage}-" in key and key.endswith(f"/submitted-{attempt}.json")]
    return dict(campaign.store.get_json(key))


def test_an_interrupt_stops_the_jobs_of_the_run(campaign: Campaign) -> None:
    (campaign.folder / "hold-miniature-s1").touch()
    process = campaign.start(name="curate")
    eventually(lambda: "begin curate-0" in campaign.trace())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    eventually(lambda: "stopped curate-0" in campaign.trace())
    assert "the same command continues" in campaign.errors()


@pytest.mark.nightly
def test_a_disk_that_fills_under_a_job_ends_in_one_message_and_the_same_command_continues(tmp_path: Path) -> None:
    small = ("pool.train_tasks=12", "rollout.batch=4")
    small += ("pool.heldout_tasks=2", "evaluation.trials=2", "evaluation.leg_trials=2")
    with small_disk(tmp_path / "disk", 2) as disk:
        campaign = Campaign(tmp_path, store=disk.folder, jobs="components.jobs")
        disk.fill(leave=100_000)
        assert campaign.run(*small, name="curate") == (2, "")
        errors = campaign.errors()
        last = errors.splitlines()[-1]
        assert f"store {disk.folder}: cannot write campaigns/miniature-s1/pool: the disk is full. Free space" in last
        assert "Traceback" not in errors
        assert "tried again" not in errors
        keys = campaign.store.list()
        assert [key.rpartition("/")[2] for key in keys if "submitted" in key] == ["submitted-0.json"]
        assert not [key for key in keys if key.endswith(("result.json", "pool"))]
        assert not list(disk.folder.rglob(".tmp-*")), "nothing is half-written"
        disk.free()
        assert campaign.run(*small, name="curate") == (0, "")
        assert campaign.store.tree("campaigns/miniature-s1/pool").is_dir()
        campaign.close()
