"""How the agent's side of a trial ended, where another process may have to know.

Invariant: it is kept before anything follows from it. What follows ends every process of the box, so whoever plays the
trial again must not come to any other end: a deadline that has passed shows in nothing else that was kept.
"""

from __future__ import annotations

from typing import Protocol

from components.errors import StopReason


class AgentEnded(Exception):
    """A trial that is played again has come to where its agent was ended in an earlier process; raised by the call that
    had no answer there."""

    def __init__(self, stop: StopReason) -> None:
        super().__init__(stop)
        self.stop = stop


class Ending(Protocol):
    """Keeps the end of one trial's agent."""

    def ended(self, stop: StopReason) -> StopReason:
        """Keeps an end, or tells the one that an earlier process kept."""


class Unkept:
    """The end of a trial that no other process goes on with."""

    def ended(self, stop: StopReason) -> StopReason:
        """The end itself."""
        return stop
