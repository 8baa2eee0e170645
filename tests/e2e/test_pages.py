"""What a person reads of real campaigns, in a browser: a report, two runs beside each other, a trajectory; and cancels.

On a stack of these tests' own, started as `make ui` does, whose jobs are the real ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from selenium.webdriver.common.by import By

from components.cluster import REPOSITORY
from components.config import load
from components.tracking import Tracker
from tasks.site import Site
from tasks.stack import ports
from tasks.stack.supervisor import Stack
from tests.browser import Page, needs_browser
from tests.jobs.conftest import SMALL
from tests.waiting import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, needs_browser, pytest.mark.timeout(1_500)]
ENDLESS = (*SMALL, "name=cancelled", "rl.leg_steps=200")
STOPPED_S = 10.0
"""From the click to the end of the job's processes, boxes and samplers too."""


@dataclass(frozen=True)
class Ui:
    """`make ui` of a state directory."""

    site: Site
    client: SyncPrefectClient

    @property
    def prefect(self) -> str:
        return str(self.site.service("prefect")).removesuffix("/api")

    @property
    def mlflow(self) -> str:
        return str(self.site.service("mlflow"))

    def trigger(self, *overrides: str) -> UUID:
        config = load(REPOSITORY / "configs" / "miniature.yaml", overrides).model_dump(mode="json")
        deployment = self.client.read_deployment_by_name("campaign/campaign")
        return self.client.create_flow_run_from_deployment(deployment.id, parameters={"config": config}).id

    def told(self) -> str:
        return Stack(self.site, print).log("worker").read_text()[-3_000:]


@pytest.fixture(scope="module")
def ui() -> Iterator[Ui]:
    home = Path(tempfile.mkdtemp(prefix="lsu-"))
    given = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "LONGSHELL_RAY_JOBS", "LONGSHELL_STORE")
    own = {f"LONGSHELL_{name.upper()}_PORT": str(ports.any_free()) for name in ports.USUAL}
    environment = {name: value for name, value in os.environ.items() if name not in given} | own
    environment["LONGSHELL_HOME"] = str(home)
    command = [sys.executable, "-m", "tasks.stack"]
    try:
        subprocess.run([*command, "up"], cwd=REPOSITORY, env=environment, check=True, capture_output=True, timeout=900)
        site = Site.current(environment)
        with SyncPrefectClient(api=str(site.service("prefect"))) as client:
            yield Ui(site, client)
    finally:
        subprocess.run([*command, "down"], cwd=REPOSITORY, env=environment, check=True, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path)
    yield made
    made.driver.quit()


@pytest.fixture(scope="module")
def campaigns(ui: Ui) -> list[str]:
    """Two that differ in their seed, both finished."""
    for seed in (1, 2):
        run = ui.trigger(*SMALL, "name=read", f"seed={seed}")
        eventually(lambda run=run: ui.client.read_flow_run(run).state.is_final(), 700, ui.told)
        assert ui.client.read_flow_run(run).state.is_completed(), ui.told()
    return ["read-s1", "read-s2"]


def report_of(ui: Ui, campaign: str) -> tuple[UUID, str]:
    """The last report among Prefect's artifacts: its id and text."""
    named = ArtifactFilter(key=ArtifactFilterKey(any_=[f"{campaign}-diagnosis"]))
    *_, artifact = ui.client.read_artifacts(artifact_filter=named)
    return artifact.id, str(artifact.data)


def processes(campaign: str) -> list[str]:
    """What runs here for a campaign: jobs, actors' servers, hosts of boxes, by their command lines."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(line) for line in found if any(f"/{campaign}/" in part for part in line)]


def test_a_real_leg_is_watched_and_cancelled_on_its_page_and_nothing_of_it_runs_on(ui: Ui, page: Page) -> None:
    run = ui.trigger(*ENDLESS)
    page.driver.get(f"{ui.prefect}/runs/flow-run/{run}")
    page.turn_to("Artifacts")
    first = re.compile(r"cancelled-s1 rl 1: step (\d+) of 200")

    def step() -> int:
        found = first.search(page.driver.find_element(By.TAG_NAME, "body").text)
        return int(found[1]) if found else 0

    eventually(lambda: step() > 0, 600, ui.told)
    before = step()
    eventually(lambda: step() > before, 120, ui.told)
    assert processes("cancelled-s1"), "a leg has boxes and samplers"

    page.press("Cancel", until=lambda: page.has("Cancel Flow Run"))
    clicked = time.monotonic()
    page.press("Confirm", until=lambda: ui.client.read_flow_run(run).state_name.startswith("Cancel"))
    eventually(lambda: not processes("cancelled-s1"), 120, lambda: "\n".join(processes("cancelled-s1")))
    took_s = time.monotonic() - clicked
    page.shows("Cancelled")
    assert ui.client.read_flow_run(run).state.is_cancelled()
    assert took_s < STOPPED_S


def test_a_report_is_read_in_prefect_and_leads_to_the_page_and_to_the_trace_of_a_trial(
    ui: Ui, page: Page, campaigns: list[str]
) -> None:
    artifact, report = report_of(ui, campaigns[0])
    page.driver.get(f"{ui.prefect}/artifacts/artifact/{artifact}")
    page.shows("Trajectories to read")
    page.shows("Verdict:")
    links = dict(re.findall(r"\[(page|trace)\]\((http[^)]+)\)", report))
    assert links.keys() == {"page", "trace"}
    assert all(address.startswith(ui.mlflow) for address in links.values())
    page.driver.get(links["trace"])
    page.shows("turn 0")
    page.driver.get("about:blank")
    page.driver.get(links["page"])
    page.driver.switch_to.frame(page.find("//iframe"))
    page.shows("Turns")
    page.shows("Assertions")


def test_two_runs_stand_beside_each_other_in_mlflow(ui: Ui, page: Page, campaigns: list[str]) -> None:
    tracker = Tracker(ui.site.tracking_uri)
    runs = [tracker.stage(tracker.campaign(name, {}, {}), "rl", {}) for name in campaigns]
    chosen = json.dumps([run.run_id for run in runs])
    page.driver.get(f'{ui.mlflow}/#/compare-runs?runs={chosen}&experiments=["{runs[0].experiment_id}"]')
    page.shows("Comparing 2 Runs from 1 Experiment")
    for run in runs:
        page.shows(run.run_id)
    page.scroll_to("rollout/reward_mean", beside="correction/streams")
    assert page.has("rollout/reward_mean")
