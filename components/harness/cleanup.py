"""Cleaning up under cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
