"""Boxes on a real Docker engine, started for these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from components.config import SandboxConfig
from components.sandbox import SandboxBackend, open_backend
from tests import dockerd
from tests.conformance.sandbox_suite import SandboxSuite

pytestmark = [pytest.mark.asyncio(loop_scope="module"), dockerd.needs_docker]


@pytest.fixture(scope="module")
def engine() -> Iterator[dockerd.Engine]:
    with dockerd.engine() as running:
        yield running


def config(engine: dockerd.Engine, **changes: object) -> SandboxConfig:
    return SandboxConfig(backend="docker", docker={"host": engine.host, "image": dockerd.BASE, **changes})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(engine: dockerd.Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(config(engine), tmp_path_factory.mktemp("state"))
    yield opened
    await opened.close()


@pytest.mark.nightly
class TestDocker(SandboxSuite):
    """The suite of every backend."""


class TestCore:
    """What of it there is time for after every change."""

    test_output = SandboxSuite.test_output_exit_code_and_signal_of_a_command
    test_timeout = SandboxSuite.test_timeout_keeps_output_and_kills_all_that_the_command_started
    test_view = SandboxSuite.test_a_view_sees_the_result_but_neither_processes_nor_planted_verifiers
    test_image = SandboxSuite.test_an_image_is_brought_up_in_order
    test_terminal = SandboxSuite.test_a_terminal_keeps_its_state_and_reports_its_prompt
