"""The databases that this installation is given, asked before anything is started on them."""

from __future__ import annotations

from components.databases import unreachable
from components.errors import ServiceError
from components.naming import shown
from tasks.site import Site


def away(site: Site) -> list[str]:
    """The databases that do not answer, each with its reason, and without a password."""
    asked = {"MLFLOW_TRACKING_URI": site.tracking_uri}
    if site.prefect_database is not None and "prefect" not in site.given:
        asked["LONGSHELL_PREFECT_DATABASE"] = site.prefect_database
    reasons = {name: unreachable(address) for name, address in asked.items()}
    return [f"{name}: {shown(asked[name])} cannot be used: {reason}" for name, reason in reasons.items() if reason]


def require_databases(site: Site) -> None:
    """Refuses to start anything while a database that it needs does not answer.

    Raises:
        ServiceError: it names every one.
    """
    if problems := away(site):
        raise ServiceError("\n".join([*problems, "Start it, or correct its address in the environment"]))
