"""A worse night reaches a person: the shipped automation on a real Prefect server, up to the message. Nightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.settings import PREFECT_API_URL, temporary_settings

from components.artifacts import LocalStore
from components.cluster import REPOSITORY
from components.tracking import Tracker
from tasks.stack import settings
from tests import services
from tests.tasks.test_comparison import put
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(600)]
ALERTS = REPOSITORY / "infra" / "automations" / "alerts.yaml"
NOBODY = "00000000-0000-0000-0000-000000000000"
NIGHTS = """
import sys
from pathlib import Path
from prefect import flow
from components.artifacts import LocalStore
from tasks import tracking
from tasks.comparison import compare_with_last_night

@flow
def night(store, trials, index):
    run = tracking.tracker().stage(tracking.tracker().campaign("mini-s1", {}, {}), "evaluate", {})
    compare_with_last_night(LocalStore(Path(store)), run, "mini-s1", "held", trials, index, "held.leg-1")

store, *nights = sys.argv[1:]
for index, trials in enumerate(nights, 1_000):
    night(store, trials, index)
"""


@contextmanager
def person(told: list[str]) -> Iterator[str]:
    """Who is told by a webhook, at this address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_a_worse_night_is_an_artifact_a_series_and_a_message_to_a_person(tmp_path: Path) -> None:
    services.stack().up(["prefect"], pin=True)
    values = settings.environment(services.site())
    store, tracking = LocalStore(tmp_path / "store"), services.database(tmp_path / "mlflow.db")
    outcomes = {"2026-11-28-leg-1": 20, "2026-11-29-leg-2": 9, "2026-11-30-leg-3": 20}
    nights = [put(store, tmp_path, label, *[True] * n, *[False] * (20 - n)) for label, n in outcomes.items()]
    environment = {**os.environ, **values, "MLFLOW_TRACKING_URI": tracking, "LONGSHELL_STORE": store.url}
    told: list[str] = []
    with person(told) as url, temporary_settings({PREFECT_API_URL: values["PREFECT_API_URL"]}):
        block = CustomWebhookNotificationBlock(name="call", url=url, json_data={"text": "{{subject}} | {{body}}"})
        alerts = tmp_path / "alerts.yaml"
        alerts.write_text(ALERTS.read_text().replace(NOBODY, str(block.save("on-call"))))
        create = [str(Path(sys.executable).with_name("prefect")), "automation", "create", "--from-file", str(alerts)]
        subprocess.run(create, env=environment, check=True, capture_output=True)
        subprocess.run([sys.executable, "-c", NIGHTS, store.url, *nights], cwd=REPOSITORY, env=environment, check=True)
        eventually(lambda: bool(told), told=lambda: "no message came")
        with SyncPrefectClient(api=values["PREFECT_API_URL"]) as client:
            asked = ArtifactFilter(key=ArtifactFilterKey(any_=["mini-s1-held-nightly-comparison"]))
            found = sorted(client.read_artifacts(artifact_filter=asked), key=lambda each: each.created)
    assert told == [
        "mini-s1: the checkpoint of the night is worse | 2026-11-29-leg-2 against 2026-11-28-leg-1 on held"
    ], "of a better night nobody is told"
    assert [str(each.data).split("**")[1] for each in found] == ["worse", "better"]
    tracker = Tracker(tracking)
    run = tracker.stage(tracker.campaign("mini-s1", {}, {}), "evaluate", {})
    history = tracker.client.get_metric_history(run.run_id, "eval/held/vs_previous/regressed")
    assert [(each.step, each.value) for each in history] == [(1_001, 11), (1_002, 0)]
