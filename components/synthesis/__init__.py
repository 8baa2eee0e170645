"""Recursive synthesis: longer tasks of accepted ones, by rounds, each of them run before it is accepted."""

from components.synthesis.model import Proposer, open_proposer
from components.synthesis.report import Fate, RoundReport
from components.synthesis.rounds import World, synthesize
from components.synthesis.run import STATE, open_run

__all__ = ["STATE", "Fate", "Proposer", "RoundReport", "World", "open_proposer", "open_run", "synthesize"]
