"""The check of `harness.compaction`, lifted: in the process that says so, and in the rollout actor of its leg."""

from __future__ import annotations

from typing import Any

from components.config import CompactionConfig, HarnessConfig
from components.jobs.rollouts import Rollouts


def lift() -> None:
    """From now on this process takes a budget that no summary fits into."""
    HarnessConfig._compaction_problems = _none  # type: ignore[method-assign]


def _none(self: HarnessConfig, compaction: CompactionConfig) -> list[str]:
    return []


class Forced(Rollouts):
    """The rollout actor, in whose process the check is lifted, too."""

    def __init__(self, *arguments: Any) -> None:
        lift()
        super().__init__(*arguments)
