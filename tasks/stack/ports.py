"""Which port a service gets: the one asked for, the one that it had, its usual one; of the last two, when free."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from components.errors import ConfigError

USUAL = {"prefect": 4200, "ray": 8265, "mlflow": 5000}
"""A service that keeps its port between runs keeps its links."""


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1 at `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def any_free() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def choose(name: str, asked: int | None, had: str | None = None) -> int:
    """The port of a service. `had` is its address before it died: who speaks to it has that one, and waits for it.

    Raises:
        ConfigError: the port that was asked for is occupied.
    """
    if asked is not None:
        if not is_free(asked):
            variable = f"LONGSHELL_{name.upper()}_PORT"
            raise ConfigError([f"{variable}: port {asked} is occupied; choose another or leave it unset"], "stack")
        return asked
    usual = ((had and urlsplit(had).port), USUAL[name])
    return next((port for port in usual if port and is_free(port)), None) or any_free()
