"""`python -m components.sandbox.host DESCRIPTOR`: serves owners on that listening socket; its orders come on stdin."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.config.rollout import SandboxConfig
from components.errors import LongshellError
from components.sandbox.backend import open_backend
from components.sandbox.host.server import Host, refuse
from components.sandbox.host.wire import Told

UNTOLD = 200
"""Lines of the log that are kept while there is nobody to tell them."""


class Telling(logging.Handler):
    """Keeps lines of the log for the owner, and says when there is one. Any thread may log."""

    def __init__(self, told: Callable[[], Any]) -> None:
        super().__init__()
        self.untold: deque[Told] = deque(maxlen=UNTOLD)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self.untold.append(Told(record.levelno, self.format(record)))
        self._told()


async def _serve(listener: socket.socket, orders: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    serving = asyncio.current_task()
    assert serving is not None, "this is a task"
    loop.add_signal_handler(signal.SIGTERM, serving.cancel)
    host: Host | None = None
    telling = Telling(lambda: loop.call_soon_threadsafe(lambda: None if host is None else host.tell()))
    logging.getLogger("components").addHandler(telling)
    try:
        backend = await open_backend(SandboxConfig.model_validate_json(orders["settings"]), Path(orders["state"]))
    except LongshellError as error:
        await refuse(listener, error, orders["token"].encode())
        return
    host = Host(backend, orders["settings"], orders["linger_s"], telling.untold, orders["token"].encode())
    await host.serve(listener)


def main() -> None:
    """Nobody's child: its owner's word or silence ends it, and no signal that a terminal or a job is sent."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO)
    orders = json.loads(sys.stdin.read())
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), orders))


main()
