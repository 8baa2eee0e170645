"""What a person does with `make ui`: fills in a form in a browser, runs every deployment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling

from components.config import CampaignConfig, load
from tasks.defaults import MINIATURE
from tests import services
from tests.browser import Page, needs_browser
from tests.flows import abandoned

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
CAMPAIGN, DIAGNOSE, NIGHTLY = "campaign/campaign", "diagnose/diagnose", "evaluate/evaluate-nightly"
ASKED = load(ROOT / "configs" / "miniature.yaml", ["seed=7", "rl.legs=1"])
"""The campaign of the form. It is short, and every deployment can run on what it has made."""
WATCHED = load(ROOT / "configs" / "miniature.yaml", ["seed=8", "rl.legs=1"])
STOPPED_S = 10.0
"""From the click to the job that was told to stop: a person would press again."""


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    abandoned.flow_run()  # It takes a worker, which these tests need.
    return services.ui()


@pytest.fixture(scope="module")
def client(environment: Mapping[str, str]) -> Iterator[SyncPrefectClient]:
    with SyncPrefectClient(api=environment["PREFECT_API_URL"]) as made:
        yield made


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path)
    yield made
    made.driver.quit()


def runs_of(name: str, client: SyncPrefectClient) -> list[FlowRun]:
    deployment = client.read_deployment_by_name(name)
    return client.read_flow_runs(deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])))


def run_from_a_terminal(name: str, environment: Mapping[str, str]) -> UUID:
    """`prefect deployment run` without a parameter, as at night."""
    command = [str(Path(sys.executable).parent / "prefect"), "deployment", "run", name]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return UUID(re.search(r"UUID: (\S+)", done.stdout)[1])


def run(name: str, client: SyncPrefectClient) -> UUID:
    """What the command does, for the campaign of the form and without three seconds of imports."""
    deployment = client.read_deployment_by_name(name)
    config = ASKED.model_dump(mode="json")
    return client.create_flow_run_from_deployment(deployment.id, parameters={"config": config}).id


def await_completed(client: SyncPrefectClient, run: UUID) -> None:
    while not (state := client.read_flow_run(run).state).is_final():
        time.sleep(0.3)
    assert state.is_completed(), f"{state}; the worker: {services.stack().log('worker').read_text()[-4000:]}"


def declared() -> list[str]:
    """The deployments of prefect.yaml."""
    items = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    return [f"{item['entrypoint'].rpartition(':')[2]}/{item['name']}" for item in items]


def trace() -> list[str]:
    """What the fake stages noted: what was done, and of which stage."""
    file = services.home() / "trace"
    return [line.rpartition(" ")[0] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def site(environment: Mapping[str, str]) -> str:
    """Where Prefect's pages are."""
    return environment["PREFECT_API_URL"].removesuffix("/api")


@pytest.fixture
def held_leg() -> Iterator[Sequence[Path]]:
    """Legs stand still before their second step, and before their fifth."""
    holds = [services.home() / f"hold-step-{step}" for step in (1, 4)]
    for hold in holds:
        hold.touch()
    yield holds
    for hold in holds:
        hold.unlink(missing_ok=True)


@pytest.fixture
def held() -> Iterator[None]:
    """The campaign of the form stands still in its first stage."""
    hold = services.home() / "hold-miniature-s7"
    hold.touch()
    yield
    hold.unlink()


def fill_in(page: Page, client: SyncPrefectClient, site: str, asked: CampaignConfig) -> FlowRun:
    """Triggers a campaign with the form, as a person does; gives its run."""
    before = {run.id for run in runs_of(CAMPAIGN, client)}
    page.driver.get(f"{site}/deployments/deployment/{client.read_deployment_by_name(CAMPAIGN).id}/run")
    page.change("Seed", str(MINIATURE.seed), str(asked.seed))
    page.change("Legs", str(MINIATURE.rl.legs), str(asked.rl.legs))
    page.press("Submit", until=lambda: len(runs_of(CAMPAIGN, client)) > len(before))
    [run] = [run for run in runs_of(CAMPAIGN, client) if run.id not in before]
    assert CampaignConfig.model_validate(run.parameters["config"]) == asked, "nothing else was changed"
    return run


@needs_browser
def test_the_form_in_the_browser_starts_a_campaign_as_it_was_filled_in_and_a_cancelled_one_stops_its_job(
    page: Page, client: SyncPrefectClient, site: str, held: None
) -> None:
    before = trace()
    run = fill_in(page, client, site, ASKED)
    assert (run.parameters["config"]["seed"], run.parameters["config"]["rl"]["legs"]) == (7, 1)

    abandoned.eventually(lambda: trace().count("begin curate-0") > before.count("begin curate-0"))
    client.set_flow_run_state(run.id, Cancelling())
    abandoned.eventually(lambda: client.read_flow_run(run.id).state.is_final())
    assert client.read_flow_run(run.id).state.is_cancelled()
    assert trace().count("stopped curate-0") == before.count("stopped curate-0") + 1


@pytest.mark.nightly
@needs_browser
def test_a_person_sees_a_leg_advance_on_the_page_of_its_run_and_cancels_it_there(
    page: Page, client: SyncPrefectClient, site: str, held_leg: Sequence[Path]
) -> None:
    run = fill_in(page, client, site, WATCHED)
    page.driver.get(f"{site}/runs/flow-run/{run.id}")
    page.turn_to("Artifacts")
    page.shows("miniature-s8 rl 1: step 1 of 16")
    held_leg[0].unlink()
    page.shows("miniature-s8 rl 1: step 4 of 16")

    stopped = trace().count("stopped rl-1")
    page.press("Cancel", until=lambda: page.has("Cancel Flow Run"))
    clicked = time.monotonic()
    page.press("Confirm", until=lambda: client.read_flow_run(run.id).state_name.startswith("Cancel"))
    abandoned.eventually(lambda: trace().count("stopped rl-1") > stopped)
    took_s = time.monotonic() - clicked
    page.shows("Cancelled")
    assert client.read_flow_run(run.id).state.is_cancelled()
    assert took_s < STOPPED_S


def test_the_nightly_evaluation_has_a_schedule_and_nothing_else_has(client: SyncPrefectClient) -> None:
    scheduled = {name: client.read_deployment_by_name(name).schedules for name in declared()}
    assert [name for name in scheduled if scheduled[name]] == [NIGHTLY]
    [nightly] = scheduled[NIGHTLY]
    assert (nightly.active, nightly.schedule.cron, nightly.schedule.timezone) == (True, "0 2 * * *", "UTC")


@pytest.mark.nightly
def test_a_campaign_ends_beside_what_runs_at_night_and_both_are_diagnosed(
    client: SyncPrefectClient, environment: Mapping[str, str]
) -> None:
    campaign, night = run(CAMPAIGN, client), run_from_a_terminal(NIGHTLY, environment)
    await_completed(client, campaign)  # Only then there is something to diagnose.
    for each in (night, run(DIAGNOSE, client)):
        await_completed(client, each)
    results = json.loads((services.home() / "store/campaigns/miniature-s7/results.json").read_text())
    assert (results["seed"], results["rl"]["pass_rate"]) == (7, pytest.approx(0.3))


@pytest.mark.nightly
def test_every_other_deployment_runs_beside_a_campaign(client: SyncPrefectClient) -> None:
    others = [name for name in declared() if name not in (CAMPAIGN, NIGHTLY, DIAGNOSE)]
    assert others
    for each in [run(CAMPAIGN, client), *(run(name, client) for name in others)]:
        await_completed(client, each)
