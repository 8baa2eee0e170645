"""What is learned from: the pool of tasks, the demonstrations."""

from __future__ import annotations

from pydantic import Field, model_validator

from components.config.section import Section


class PoolConfig(Section):
    """Which tasks are trained on and which are held out."""

    train_tasks: int = Field(2_000, ge=1)
    heldout_tasks: int = Field(256, ge=1)
    min_subtasks: int = Field(1, ge=1, le=5)
    max_subtasks: int = Field(5, ge=1, le=5)
    """More would run out of names, and of the token wall of a terse trajectory."""
    oracle_runs: int = Field(1, ge=1)
    """Times the reference solution must reach the full report in a fresh box before a task is accepted."""
    noop_runs: int = Field(1, ge=1)
    """Times the untouched environment is verified; assertions that pass there earn no credit."""

    @model_validator(mode="after")
    def _ordered(self) -> PoolConfig:
        if self.min_subtasks > self.max_subtasks:
            raise ValueError(f"min_subtasks {self.min_subtasks} exceeds max_subtasks {self.max_subtasks}")
        return self


class HabitConfig(Section):
    """How often a demonstrator takes the documented wrong way (docs/miniature.md)."""

    blind_error_rate: float = Field(ge=0, le=1)
    """On the families where it does not know better."""
    other_error_rate: float = Field(ge=0, le=1)
    early_stop_rate: float = Field(ge=0, le=1)
    """Share of trajectories that claim completion one subtask early."""


class DemonstrationConfig(Section):
    """Scripted demonstrations, executed in real sandboxes."""

    trajectories: int = Field(ge=1)
    habits: HabitConfig
    repeats: int = Field(0, ge=0)
    """Documents beside them that say a random string of tokens twice. A fresh model learns to copy from them."""
