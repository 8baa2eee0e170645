"""The pictures in `docs/images/`, taken of a finished campaign in a headless browser.

`python docs/screenshots.py --prefect URL --mlflow URL --store var/store --campaign miniature-s1 [--beside miniature-s2]
[--only PICTURE …]`, with the stack of their home up (`make ui` prints both URLs). `--beside` is another finished
campaign, for the picture of both. Needs Debian's `chromium` and `chromium-driver`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterName,
)
from prefect.client.schemas.sorting import FlowRunSort
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from components.artifacts import ArtifactStore, open_store

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1600, 1000
MAX_BYTES = 400_000
WAIT_S = 90.0

CHARTS = {
    "mlflow-run.png": ("gap/(engine|policy|total)_token_mean$|rollout/(reward_mean|turns_mean|carried)$", 3, 1800),
    "mlflow-counts.png": ("rollout/(launched|cancelled)$|critic/explained_variance$|tito/drift$", 2, 2400),
}
"""Of each MLflow picture: what the search box is told, how many of it are of `rollout`, how wide its page is."""
HIDDEN = ".modebar, [data-assistant-ui] {display: none !important}"
"""MLflow's: tool bars that lie over the curves where there is no mouse, and its assistant's button."""


class Camera:
    """A browser whose page is the size of the picture."""

    def __init__(self, profile: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-dev-shm-usage", "--no-proxy-server", f"--user-data-dir={profile}"),
        ):
            options.add_argument(argument)
        self.driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
        self.size(WIDTH, HEIGHT)

    def size(self, width: int, height: int) -> None:
        """Lays pages out for this size; the picture keeps its own."""
        page = {"width": width, "height": height, "deviceScaleFactor": WIDTH / width, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", page)

    def open(self, url: str) -> None:
        """Loads a page, even when it differs from the last one only after its `#`."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def see(self, xpath: str) -> WebElement:
        """The first such element that is shown, once there is one."""

        def shown(driver: webdriver.Chrome) -> WebElement | None:
            return next((item for item in driver.find_elements(By.XPATH, xpath) if item.is_displayed()), None)

        message = f"{self.driver.current_url} never showed {xpath}"
        return WebDriverWait(self.driver, WAIT_S).until(shown, message)

    def click(self, kind: str, text: str) -> None:
        """Clicks what a person would call by this text."""
        self.see(f"//{kind}[normalize-space()='{text}']").click()

    def take(self, name: str) -> None:
        """Writes the picture once two in a row are the same: nothing moves or loads any more."""

        def still(driver: webdriver.Chrome) -> bytes | None:
            nonlocal last
            before, last = last, driver.get_screenshot_as_png()
            return last if last == before else None

        last = b""
        picture = WebDriverWait(self.driver, WAIT_S, poll_frequency=1.0).until(still, f"{name} never came to rest")
        if len(picture) > MAX_BYTES:
            raise ValueError(f"{name}: {len(picture)} bytes, more than {MAX_BYTES}")
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / name).write_bytes(picture)
        print(f"{name}: {len(picture) // 1000} kB")


def prefect_pictures(camera: Camera, prefect: str, campaign: str) -> None:
    """The campaign's last flow run: its graph, its artifacts, the log of its last leg."""
    named = FlowRunFilter(name=FlowRunFilterName(any_=[campaign]))
    with SyncPrefectClient(api=f"{prefect}/api") as client:
        run, *_ = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.START_TIME_DESC, limit=1)
        tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    *_, leg = sorted(task.name for task in tasks if task.name.startswith("rl-leg-"))
    [leg_id] = [task.id for task in tasks if task.name == leg]

    camera.open(f"{prefect}/runs/flow-run/{run.id}")
    camera.click("li", "Task Runs")
    camera.see(f"//a[normalize-space()='{leg}']")
    camera.take("prefect-campaign.png")
    camera.size(1720, 1075)
    camera.click("li", "Artifacts")
    last = camera.see("(//*[normalize-space()='Task runs']/following::*[contains(@class, 'card')])[last()]")
    camera.driver.execute_script("arguments[0].scrollIntoView({block: 'end'})", last)
    ActionChains(camera.driver).move_by_offset(5, 5).perform()
    camera.take("prefect-artifacts.png")
    camera.size(1504, 940)
    camera.open(f"{prefect}/runs/task-run/{leg_id}")
    Select(camera.see("//*[contains(@class, 'logs-sort')]//select")).select_by_visible_text("Newest to oldest")
    camera.see("//*[contains(., 'Finished in state')]")
    camera.take("prefect-leg.png")


def report_picture(camera: Camera, prefect: str, campaign: str) -> None:
    """The campaign's diagnosis, where Prefect shows it."""
    named = ArtifactFilter(key=ArtifactFilterKey(any_=[f"{campaign}-diagnosis"]))
    with SyncPrefectClient(api=f"{prefect}/api") as client:
        *_, artifact = client.read_artifacts(artifact_filter=named)
    camera.size(WIDTH, HEIGHT)
    camera.open(f"{prefect}/artifacts/artifact/{artifact.id}")
    camera.see("//*[normalize-space()='Held-out tasks']")
    camera.take("prefect-report.png")


def rl_run(client: MlflowClient, campaign: str) -> Run:
    """The run of a campaign's RL stage."""
    experiments = [item.experiment_id for item in client.search_experiments()]
    [run] = client.search_runs(experiments, f"tags.`longshell.key` = '{campaign}/rl'")
    return run


def comparison_picture(camera: Camera, mlflow: str, campaigns: Sequence[str]) -> None:
    """The RL stages of two campaigns beside each other."""
    runs = [rl_run(MlflowClient(mlflow), campaign) for campaign in campaigns]
    chosen = json.dumps([run.info.run_id for run in runs])
    camera.size(WIDTH, HEIGHT)
    camera.open(f'{mlflow}/#/compare-runs?runs={chosen}&experiments=["{runs[0].info.experiment_id}"]')
    camera.see("//*[contains(text(), 'Comparing 2 Runs')]")
    hide(camera)
    camera.take("mlflow-compare.png")


def hide(camera: Camera) -> None:
    """Takes away what lies over MLflow's pages."""
    camera.driver.execute_script(
        "document.head.appendChild(document.createElement('style')).textContent = arguments[0]", HIDDEN
    )


def mlflow_pictures(camera: Camera, mlflow: str, campaign: str) -> None:
    """The charts of the campaign's RL stage."""
    run = rl_run(MlflowClient(mlflow), campaign)

    camera.size(WIDTH, HEIGHT)
    page = f"{mlflow}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/model-metrics"
    camera.open(page)
    camera.see("//button[@aria-label='Close']").click()  # The assistant.
    camera.click("*[@role='button']", "Model training")  # Remembered; leads away from the page.
    camera.see("//*[normalize-space()='Model registry' or normalize-space()='Models']")
    for name, (metrics, rollout, width) in CHARTS.items():
        camera.size(width, width * HEIGHT // WIDTH)
        camera.open(page)
        camera.see("//input[@placeholder='Search metric charts']").send_keys(Keys.CONTROL, "a", Keys.NULL, metrics)
        hide(camera)
        camera.see(f"//*[normalize-space()='rollout({rollout})']")
        camera.take(name)


def trajectory_picture(camera: Camera, store: ArtifactStore, campaign: str) -> None:
    """The turns of a trial: of the last page among those of the reports that has its token gaps."""
    pages = [key for key in store.list(f"campaigns/{campaign}/diagnose") if "/trajectories/" in key]
    camera.size(1280, 800)
    with tempfile.TemporaryDirectory() as folder:
        for page in reversed(pages):
            file = Path(folder) / page.rpartition("/")[2]  # a browser takes a link in the store for what it points to
            file.write_bytes(store.get_bytes(page))
            camera.open(file.as_uri())
            if camera.driver.find_elements(By.ID, "gap"):
                camera.see("//label[@for='sure']").click()  # the miniature's two engines agree to six digits
                turns = camera.see("//h2[normalize-space()='Turns']")
                camera.driver.execute_script("arguments[0].scrollIntoView()", turns)
                camera.take("trajectory.png")
                return
    raise ValueError(f"{campaign} has no report with a trial whose gaps are known")


def main() -> None:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("prefect", "mlflow", "store", "campaign"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--beside")
    parser.add_argument("--only", nargs="+", default=["prefect", "report", "mlflow", "comparison", "trajectory"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile:
        camera = Camera(profile)
        takes: dict[str, Callable[[], None]] = {
            "prefect": lambda: prefect_pictures(camera, given.prefect, given.campaign),
            "report": lambda: report_picture(camera, given.prefect, given.campaign),
            "mlflow": lambda: mlflow_pictures(camera, given.mlflow, given.campaign),
            "comparison": lambda: comparison_picture(camera, given.mlflow, (given.campaign, given.beside)),
            "trajectory": lambda: trajectory_picture(camera, open_store(given.store), given.campaign),
        }
        if given.beside is None:
            del takes["comparison"]
        try:
            for name, take in takes.items():
                if name in given.only:
                    take()
        finally:
            camera.driver.quit()


if __name__ == "__main__":
    main()
