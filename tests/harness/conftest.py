"""A real sandbox backend, opened once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from components.config import SandboxConfig
from components.sandbox import SandboxBackend, open_backend


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(SandboxConfig(), tmp_path / "sandbox")
    yield opened
    await opened.close()
