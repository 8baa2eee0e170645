"""What the loop and the verifier need of a task. `components.pool.Task` is one; the loop does not know the pool."""

from __future__ import annotations

from collections.abc import Mapping
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
    def agent_timeout_s(self) -> float | None:
        """Seconds that the agent is given; None where the task sets no limit of its own."""

    @property
    def verifier_timeout_s(self) -> float:
        """Seconds that the verifier is given."""

    @property
    def verifier_env(self) -> Mapping[str, str]:
        """Environment variables of the verifier alone."""

    @property
    def verifier_installs(self) -> bool:
        """Whether its verifier writes to the system, below /usr or /etc, also where it reaches no host."""

    @property
    def tests_dir(self) -> Path:
        """The folder that becomes /tests, with `test.sh` in it. Never in the agent's box."""

    def sandbox_spec(self, config: SandboxConfig) -> SandboxSpec: ...
