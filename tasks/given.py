"""The servers and databases that this installation is given, asked before anything is started for them."""

from __future__ import annotations

import httpx

from components.databases import CONNECT_S, unreachable
from components.errors import ServiceError
from components.naming import hidden, shown
from tasks.site import Site

_SERVERS = {
    "prefect": ("PREFECT_API_URL", "health"),
    "ray": ("LONGSHELL_RAY_JOBS", "api/version"),
    "mlflow": ("MLFLOW_TRACKING_URI", "health"),
}
"""Of every server that may be given: the variable that names it, and a page below it."""
_OF_A_PROXY = (502, 503, 504)
"""What a proxy says of a server that is away."""


def away(site: Site) -> list[str]:
    """What does not answer, each with its reason, and without a password."""
    databases = {"MLFLOW_TRACKING_URI": site.tracking_uri}
    if site.prefect_database is not None and "prefect" not in site.given:
        databases["LONGSHELL_PREFECT_DATABASE"] = site.prefect_database
    found = [(name, address, unreachable(address)) for name, address in databases.items()]
    for server, address in site.given.items():
        name, page = _SERVERS[server]
        found.append((name, address, _silent(address, page)))
    return [f"{name}: {shown(address)} cannot be used: {reason}" for name, address, reason in found if reason]


def require_given(site: Site) -> None:
    """Refuses to start anything while what it needs does not answer.

    Raises:
        ServiceError: it names every one.
    """
    if problems := away(site):
        raise ServiceError("\n".join([*problems, "Start it, or correct its address in the environment"]))


def _silent(address: str, page: str) -> str | None:
    """Why nothing is heard from a server. What it answers itself is an answer: its clients know what to make of it."""
    try:
        answer = httpx.get(f"{address.rstrip('/')}/{page}", timeout=CONNECT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return hidden(str(error) or type(error).__name__, address)
    return f"{answer.status_code} {answer.reason_phrase}" if answer.status_code in _OF_A_PROXY else None
