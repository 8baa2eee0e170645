"""Processes that act as one: started together, called together, ended together."""

from components.trainer.ranks.pool import Ranks

__all__ = ["Ranks"]
