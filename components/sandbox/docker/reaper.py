"""Who owns what lies in an engine, and the removal of what nobody does.

Invariant: labels are on a container or volume before it exists, and are all that is read; what belongs to a living
owner is left alone. An owner on another machine, or in
another pid namespace, cannot be looked for: its things go when their deadline has passed.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from docker.errors import APIError

from components.sandbox import leases
from components.sandbox.docker.engine import Engine

log = logging.getLogger(__name__)

LEASE, HOST, OWNER, DEADLINE = (f"longshell.{name}" for name in ("lease", "host", "owner", "deadline"))


def this_host() -> str:
    """Names this machine also among those of its name: several may share an engine that is reached over a network."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return f"{socket.gethostname()}/{machine}"


def labels(lease: str, ttl_s: float) -> dict[str, str]:
    """Of what this process makes now."""
    owner = json.dumps(asdict(leases.current_owner()))
    return {LEASE: lease, HOST: this_host(), OWNER: owner, DEADLINE: str(int(time.time() + ttl_s))}


def is_left(found: Mapping[str, str], observer: leases.Owner, host: str, now: float) -> bool:
    """Whether what bears these labels is nobody's any more."""
    owner = leases.Owner(**json.loads(found[OWNER]))
    if found[HOST] == host and (owner.boot != observer.boot or owner.pid_namespace == observer.pid_namespace):
        return leases.is_orphan(owner, observer, 0.0)
    return now > float(found[DEADLINE])


def reap(engine: Engine, lease: str, alive: Callable[[str], bool]) -> list[str]:
    """Remove what is left in an engine; the names of what was removed. Blocks; InfraFault when the engine is away.

    Args:
        lease: this process's own, whose boxes are left when they are not `alive` by name: their removal had failed.
    """
    observer, host, now = leases.current_owner(), this_host(), time.time()

    def left(things: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [thing for thing in things if is_left(thing["Labels"], observer, host, now)]

    mine = {"label": LEASE}
    found = engine.call_now("reaper", lambda api: api.containers(all=True, filters=mine))
    found = [box for box in found if box["Labels"][LEASE]]  # none: what somebody else made of an image of ours
    own = [box for box in found if box["Labels"][LEASE] == lease and not alive(box["Names"][0].lstrip("/"))]
    boxes = [*own, *left([box for box in found if box["Labels"][LEASE] != lease])]
    removed = [box["Names"][0].lstrip("/") for box in boxes if remove(engine, box["Id"])]
    volumes = left(engine.call_now("reaper", lambda api: api.volumes(filters=mine))["Volumes"] or [])
    removed += [volume["Name"] for volume in volumes if remove_volume(engine, volume["Name"])]
    if removed:
        log.warning("removed what was left in the engine: %s", ", ".join(removed))
    return removed


def remove(engine: Engine, container: str) -> bool:
    """Remove a container with what is in it; False when another was faster."""
    return engine.call_now("remove", lambda api: _gone(lambda: api.remove_container(container, v=True, force=True)))


def remove_volume(engine: Engine, volume: str) -> bool:
    """Remove a volume; False when another was faster, or a box still has it."""
    return engine.call_now("remove", lambda api: _gone(lambda: api.remove_volume(volume)))


def _gone(removal: Any) -> bool:
    try:
        removal()
    except APIError as error:
        if error.status_code in (404, 409):  # removed by another, or about to be
            return False
        raise
    return True
