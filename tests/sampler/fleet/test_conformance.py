"""A fleet of two passes what one sampler passes; the raw requests go to the replica that the suite's session is on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from components.sampler import ModelGeometry
from components.sampler.fleet import Fleet
from tests.conformance.sampler_suite import SamplerSuite
from tests.sampler.conftest import SLOTS
from tests.sampler.fleet.parts import fleet_of


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="class")
class TestFleet(SamplerSuite):
    """Two embedded servers."""

    @pytest.fixture(scope="class")
    async def fleet(self, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
        async with fleet_of(model_folder, tmp_path_factory.mktemp("log"), [], slots=SLOTS) as (fleet, _):
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
