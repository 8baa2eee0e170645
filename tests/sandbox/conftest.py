"""Backends for the sandbox tests, one of a kind per module."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from components.sandbox import Sandbox, SandboxSpec, ZygoteBackend

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
