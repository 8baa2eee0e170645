"""What the loop and the verifier need of a task. `components.pool.Task` is one; the loop does not know the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from components.config import SandboxConfig
from components.records import TaskRef
from components.sandbox import SandboxSpec


class TrialTask(Protocol):
    """One task, loaded."""

    @property
    def ref(self) -> TaskRef: ...

    @property
    def instruction(self) -> str: ...

    @property
    def tests_dir(self) -> Path:
        """The folder that becomes /tests, with `test.sh` in it. Never in the agent's box."""

    def sandbox_spec(self, config: SandboxConfig) -> SandboxSpec: ...
