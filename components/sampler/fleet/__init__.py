"""Several samplers as one: started, watched, started again, and drawn from by trajectories that stay where they are."""

from __future__ import annotations

from components.sampler.fleet.fleet import Clock, Fleet, open_fleet
from components.sampler.fleet.launcher import ChildLauncher, GivenLauncher, Launcher, Serving
from components.sampler.fleet.supervision import Life, Limits, State, Supervision

__all__ = [
    "ChildLauncher",
    "Clock",
    "Fleet",
    "GivenLauncher",
    "Launcher",
    "Life",
    "Limits",
    "Serving",
    "State",
    "Supervision",
    "open_fleet",
]
