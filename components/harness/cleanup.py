"""Cleaning up under cancellation, and without losing what was done before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from components.errors import InfraFault
from components.sandbox import Sandbox

log = logging.getLogger(__name__)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end even when cancelled meanwhile; the cancellation is raised afterwards, whatever failed."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    task.result()


async def dismiss(box: Sandbox) -> InfraFault | None:
    """Stops a box that has served, even when cancelled meanwhile; gives what kept it from ending.

    That takes no verdict away: the backend has been told, and whatever remains ends with it.
    """
    try:
        await uninterrupted(box.stop())
    except InfraFault as fault:
        log.warning("sandbox %s did not stop: %s", box.id, fault)
        return fault
    return None
