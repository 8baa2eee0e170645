"""Recursive synthesis: longer tasks of accepted ones, by rounds, each of them run before it is accepted."""

from components.synthesis.report import Fate, RoundReport
from components.synthesis.rounds import World, synthesize
from components.synthesis.run import STATE, open_run

__all__ = ["STATE", "Fate", "RoundReport", "World", "open_run", "synthesize"]
