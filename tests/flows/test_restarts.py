"""A server is killed in the middle of a leg and started again: the campaign ends, and nothing is there twice."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from components.rollout import load_batch
from components.tracking import Tracker
from tasks.site import Site
from tasks.stack import ports
from tasks.stack.supervisor import Stack, recorded
from tests import services
from tests.flows.test_campaign import Campaign
from tests.jobs.conftest import SMALL
from tests.waiting import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.timeout(1_500)]
SERVERS = ("ray", "prefect", "mlflow")
STEPS = 8
HELD = STEPS - 2
"""The leg does not end before its server is back."""
WITHIN_S = 600.0
"""Every stage before a leg is a job of its own, and each takes half a minute to begin on a busy machine."""


class Servers:
    """A Prefect, an MLflow and a Ray of these tests' own."""

    def __init__(self, home: Path) -> None:
        self.site = Site(
            home=home,
            store_url=str(home / "store"),
            tracking_uri=services.database(home / "mlflow" / "mlflow.db"),
            jobs_package="tests.fake_jobs",
            ports={name: ports.any_free() for name in SERVERS},
        )
        self.stack = Stack(self.site, lambda line: None)
        self.start()

    def start(self) -> None:
        for name in SERVERS:  # One after the other: a Ray head that starts on a busy machine gives up.
            self.stack.up([name], pin=True)

    def kill(self, names: Sequence[str]) -> None:
        """Ends servers and whatever they have started at once, as a machine does that loses its power."""
        record = recorded(self.site)
        assert record is not None
        mains = [psutil.Process(record.services[name]["pid"]) for name in names]
        family = [process for main in mains for process in (main, *main.children(recursive=True))]
        for process in family:
            process.kill()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []

    def campaign(self, folder: Path, jobs: str = "tests.fake_jobs") -> Campaign:
        """One whose flow speaks to MLflow's server, as on a cluster, and not to the database."""
        made = Campaign(folder, jobs=jobs, site=self.site)
        made.tracking = str(self.site.service("mlflow"))
        return made


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    home = Path(tempfile.mkdtemp(prefix="lsr-"))
    made = Servers(home)
    yield made
    made.stack.down()
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("name", SERVERS)
def test_a_campaign_whose_server_is_killed_in_a_leg_and_started_again_ends_with_nothing_doubled(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    campaign = servers.campaign(tmp_path)
    hold = tmp_path / f"hold-step-{HELD}"
    hold.touch()
    process = campaign.start(f"name={name}", "rl.legs=1", f"rl.leg_steps={STEPS}")
    try:
        eventually(lambda: campaign.committed(0), WITHIN_S, campaign.errors)
        servers.kill([name])
        if name != "ray":
            eventually(lambda: campaign.committed(HELD - 1), WITHIN_S, campaign.errors)
        servers.start()
        hold.unlink()
        process.communicate()
        assert process.returncode == 0, campaign.errors()
    finally:
        campaign.close()
    trace = campaign.trace()
    assert trace.count("begin rl-1") == (2 if name == "ray" else 1)
    assert [trace.count(f"begin {stage}-0") for stage in ("curate", "base", "sft", "diagnose")] == [1] * 4
    assert [trace.count(f"begin evaluate-{index}") for index in range(3)] == [1] * 3
    ended_once(servers, campaign, f"{name}-s1", attempts=2 if name == "ray" else 1)


def test_a_real_leg_that_loses_all_three_at_once_ends_with_every_trial_and_step_counted_once(
    servers: Servers, tmp_path: Path
) -> None:
    campaign = servers.campaign(tmp_path, jobs="components.jobs")
    process = campaign.start(*SMALL, "name=real", f"rl.leg_steps={STEPS}")
    try:
        eventually(lambda: campaign.committed(1), WITHIN_S, campaign.errors)
        servers.kill(SERVERS)
        servers.start()
        output, _ = process.communicate()
        assert process.returncode == 0, campaign.errors()
    finally:
        campaign.close()
    assert '"seed": 1' in output.splitlines()[-1]
    ended_once(servers, campaign, "real-s1", attempts=2)

    rl = "campaigns/real-s1/rl"
    batches = [load_batch(campaign.store.tree(f"{rl}/batches/{step:06d}")) for step in range(STEPS)]
    trained = [trial.trial_id for batch in batches for trial in batch.trials]
    assert len(trained) == len(set(trained)) == 4 * STEPS
    for step, batch in enumerate(batches):
        metrics = campaign.store.get_json(f"{rl}/steps/{step:06d}/record.json")["metrics"]
        outcomes = ("admitted", "cancelled", "carried", "continued", "infra_faults")
        ended = sum(metrics[f"rollout/{outcome}"] for outcome in outcomes)
        assert metrics["rollout/launched"] + metrics["rollout/resumed"] == ended == len(batch.ledger.rows)
        assert metrics["tito/drift"] == 0


def ended_once(servers: Servers, campaign: Campaign, name: str, attempts: int) -> None:
    """Store, MLflow and Prefect have the campaign whole, and each thing of it once."""
    jobs = [key for key in campaign.store.list(f"campaigns/{name}/jobs") if "-rl-1-" in key]
    marks = sorted(key.rpartition("/")[2] for key in jobs if "/submitted-" in key)
    assert marks == [f"submitted-{attempt}.json" for attempt in range(attempts)]

    tracker = Tracker(servers.site.tracking_uri)
    runs = tracker.client.search_runs([tracker._experiment], f"tags.`longshell.campaign` = '{name}'")
    keys = Counter(run.data.tags["longshell.key"] for run in runs)
    assert set(keys.values()) == {1}, keys
    assert {run.info.status for run in runs} == {"FINISHED"}
    (rl,) = [run for run in runs if run.data.tags["longshell.key"] == f"{name}/rl"]
    for metric in rl.data.metrics:
        steps = [item.step for item in tracker.client.get_metric_history(rl.info.run_id, metric)]
        assert len(steps) == len(set(steps)), metric
    committed = tracker.client.get_metric_history(rl.info.run_id, "time/committed_ms")
    assert sorted(item.step for item in committed) == list(range(STEPS))

    with SyncPrefectClient(api=str(servers.site.service("prefect"))) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
        [run] = client.read_flow_runs(flow_run_filter=named)
        tasks = client.read_task_runs(flow_run_filter=named)
    assert run.state.is_completed(), run.state
    assert max(Counter(task.name for task in tasks).values()) == 1
    assert {(task.name, task.state_name) for task in tasks} == {(task.name, "Completed") for task in tasks}
