"""What is recorded in MLflow: runs, step metrics, datasets, checkpoints, trajectories. Everything may be done twice."""

from __future__ import annotations

from components.tracking.registry import ALIASES, Checkpoint, Registry, campaigns
from components.tracking.traces import Trace, Trajectory, TurnView, log_trajectory
from components.tracking.tracker import Run, Tracker

__all__ = [
    "ALIASES",
    "Checkpoint",
    "Registry",
    "Run",
    "Trace",
    "Tracker",
    "Trajectory",
    "TurnView",
    "campaigns",
    "log_trajectory",
]
