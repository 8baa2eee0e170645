"""What is learned from: the pool of tasks, the demonstrations."""

from __future__ import annotations

from pydantic import Field, model_validator

from components.config.audit import AuditConfig
from components.config.section import Section


class ProbeConfig(Section):
    """What is tried on a task that executes as it should: whether its reward can be had without the work."""

    seconds: float = Field(600.0, gt=0)
    """For one task. What there was no time for is told."""
    commands: int = Field(8, ge=0)
    """Of the reference solution, left out one at a time."""
    paths: int = Field(8, ge=0)
    """That the solution makes, taken away one at a time."""
    search_mb: int = Field(32, ge=1)
    """Of a box's files outside its system, that are searched for the tests and the solution."""


class ImportConfig(Section):
    """Harbor task directories from elsewhere: folders of them, or tar archives, by absolute path.

    `train` and `heldout` may also be prefixes of a bucket, as `s3://bucket/prefix`.
    """

    train: tuple[str, ...] = Field(min_length=1)
    heldout: tuple[str, ...] = Field(min_length=1)
    benchmarks: tuple[str, ...] = ()
    """Folders of tasks that training must not repeat. The held-out tasks are such a folder, too."""
    jaccard: float = Field(0.1, gt=0, le=1)
    """Of 5-grams, from which on a training task repeats one of those in other words."""
    near_duplicate: float | None = Field(0.8, gt=0, le=1)
    """Of the 5-grams of two training tasks' instructions, from which on only the first is kept."""
    binary_only: bool = False
    """Whether to take tasks whose verifier gives a verdict and names no assertion. They earn 0 or 1."""
    probes: ProbeConfig | None = ProbeConfig()
    """None: only the gates that every task passes. With probes a task is solved, and left alone, at least twice."""

    @model_validator(mode="after")
    def _absolute(self) -> ImportConfig:
        for name in ("train", "heldout", "benchmarks"):
            for path in getattr(self, name):
                if not path.startswith("/" if name == "benchmarks" else ("/", "s3://")):
                    raise ValueError(f"{name}: {path!r} must be an absolute path: jobs run elsewhere")
        return self


class PoolConfig(Section):
    """Which tasks are trained on and which are held out."""

    imported: ImportConfig | None = None
    """None: tasks are generated."""
    audit: AuditConfig | None = None
    """None: what the gates admit is trained on. Else a judge audits it, and the best are selected."""
    train_tasks: int = Field(2_000, ge=1)
    """Of imported tasks, at most as many."""
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
