"""Backends for the sandbox tests, one of a kind per module."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from components.sandbox import Sandbox, SandboxBackend, SandboxSpec, ZygoteBackend, open_backend
from tests import dockerd

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespace/root needs root")
SMALL = SandboxSpec(memory_mb=128, disk_mb=16, pids=64)


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    """A folder that an unprivileged zygote can reach too (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp(prefix="longshell-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def root_backend(state_dir: Path) -> AsyncIterator[ZygoteBackend]:
    if os.geteuid() != 0:
        pytest.skip("namespace/root needs root")
    backend = await ZygoteBackend.open("namespace/root", state_dir)
    yield backend
    await backend.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unprivileged_backend(state_dir: Path) -> AsyncIterator[ZygoteBackend]:
    become = NOBODY if os.geteuid() == 0 else None
    backend = await ZygoteBackend.open("namespace/unprivileged", state_dir, become_uid=become)
    yield backend
    await backend.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process_backend(state_dir: Path) -> AsyncIterator[ZygoteBackend]:
    backend = await ZygoteBackend.open("process", state_dir)
    yield backend
    await backend.close()


@pytest_asyncio.fixture(loop_scope="module")
async def box(root_backend: ZygoteBackend) -> AsyncIterator[Sandbox]:
    started = await root_backend.start(SMALL)
    yield started
    await started.stop()


@pytest_asyncio.fixture(loop_scope="module", params=["root", "unprivileged"])
async def any_box(
    request: pytest.FixtureRequest, root_backend: ZygoteBackend, unprivileged_backend: ZygoteBackend
) -> AsyncIterator[Sandbox]:
    backend = root_backend if request.param == "root" else unprivileged_backend
    started = await backend.start(SMALL)
    yield started
    await started.stop()


@pytest.fixture(scope="session")
def engine() -> Iterator[dockerd.Engine]:
    """A Docker engine of the tests' own."""
    if dockerd.missing():
        pytest.skip(dockerd.missing())
    with dockerd.engine() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def docker_backend(engine: dockerd.Engine, state_dir: Path) -> AsyncIterator[SandboxBackend]:
    """Of an image that has Python."""
    dockerd.import_base(engine, dockerd.WITH_PYTHON, dockerd.PYTHON)
    backend = await open_backend(engine.config(dockerd.WITH_PYTHON), state_dir)
    yield backend
    await backend.close()
