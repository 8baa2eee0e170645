"""A stage of a campaign whose boxes a Docker engine runs: nothing in a job knows the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import dockerd
from tests.jobs.conftest import SmallCampaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), dockerd.needs_docker]
TASKS_BASE = "longshell-miniature:latest"


@pytest.fixture(scope="module")
def engine() -> Iterator[dockerd.Engine]:
    with dockerd.engine() as running:
        dockerd.import_base(running, TASKS_BASE, ("git",))
        yield running


@pytest.fixture(scope="module")
def on_docker(campaign: SmallCampaign, engine: dockerd.Engine) -> SmallCampaign:
    settings = f"sandbox.docker={{host: '{engine.host}', image: '{TASKS_BASE}', prewarm: 1}}"
    return campaign.variant("docker", "sandbox.backend=docker", settings)


def test_curation_admits_what_it_admits_in_namespaces(on_docker: SmallCampaign, pool: dict[str, Any]) -> None:
    admitted = on_docker.run("curate", {})
    assert {name: admitted[name] for name in ("train", "heldout", "warmup", "rejected")} == {
        name: pool[name] for name in ("train", "heldout", "warmup", "rejected")
    }
