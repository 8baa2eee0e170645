"""A fleet of two passes what one sampler passes; the raw requests go to the replica that the suite's session is on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from components.config import SamplerConfig
from components.sampler import ModelGeometry, SamplerServer, launch_sampler
from components.sampler.fleet import Fleet, GivenLauncher, Serving, open_fleet
from tests.conformance.sampler_suite import SamplerSuite
from tests.sampler.conftest import CONTEXT, SLOTS


@pytest.mark.nightly
class TestFleet(SamplerSuite):
    """Two embedded servers that run already, since a fleet lives in one test's event loop."""

    @pytest.fixture(scope="class")
    def second(self, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerServer]:
        config = SamplerConfig(slots=SLOTS, context_tokens=CONTEXT, prefill_tokens=64)
        log = tmp_path_factory.mktemp("log") / "sampler.log"
        with launch_sampler(config, model_folder, seed=1, routing=True, log_path=log) as server:
            yield server

    @pytest.fixture
    async def fleet(
        self, embedded: SamplerServer, second: SamplerServer, model_folder: Path, tmp_path: Path
    ) -> AsyncIterator[Fleet]:
        urls = (second.url, embedded.url)
        config = SamplerConfig(engine="sglang", urls=urls, slots=SLOTS, context_tokens=CONTEXT, request_timeout_s=60)
        serving = Serving(config, model_folder, seed=0, routing=True, logs=tmp_path)
        async with open_fleet(serving, GivenLauncher(serving), [].append) as fleet:
            yield fleet

    @pytest.fixture
    def folder(self, model_folder: Path) -> Path:
        return model_folder

    @pytest.fixture
    def url(self, fleet: Fleet) -> str:
        life = fleet.supervision.assign("suite")
        assert life is not None
        return fleet.url(life.place)

    @pytest.fixture
    def client(self, fleet: Fleet, geometry: ModelGeometry) -> Fleet:
        return fleet
