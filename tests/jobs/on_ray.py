"""Replicas that are actors, seen from outside: their processes on the session's Ray."""

from __future__ import annotations

import contextlib

import psutil

from tests import services


def actors() -> set[int]:
    """Processes of the replicas' actors on the session's Ray."""
    found = set()
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            if process.info["name"].startswith("ray::Replica"):
                above = (" ".join(parent.cmdline()) for parent in process.parents())
                found |= {process.pid} if any(str(services.home()) in line for line in above) else set()
    return found
