"""How a pool is grown by recursive synthesis (design section 8)."""

from __future__ import annotations

from pydantic import Field

from components.config.audit import EndpointConfig
from components.config.section import Section


class SynthesisConfig(Section):
    """Rounds over accepted tasks: each makes longer tasks of those that the round before accepted.

    The caps are those of published rounds of about a thousand tasks: scale them with `tasks`.
    """

    rounds: int = Field(3, ge=1)
    tasks: int = Field(200, ge=1)
    """Accepted tasks that a round aims at."""
    waves: int = Field(3, ge=1)
    """Times a round proposes what it still lacks."""
    repairs: int = Field(2, ge=0)
    """Times a rejected proposal is repaired by what the log says of it."""
    model: EndpointConfig | None = None
    """A model that proposes tasks beside the operators that need none. None: they alone do."""
    model_attempts: int = Field(2, ge=1)
    """Times a usable answer is asked of it."""
    min_turns: int = Field(1, ge=0)
    """Commands by which a task's reference solution is longer than its parent's, at least."""
    min_assertions: int = Field(1, ge=1)
    """Assertions that fail untouched and pass solved, beyond its parent's, at least."""
    max_turns: int = Field(32, ge=1)
    """Of the reference solution."""
    max_instruction_words: int = Field(180, ge=1)
    per_parent: int = Field(4, ge=1)
    """Tasks that are made of one, over all rounds."""
    per_category: int = Field(160, ge=1)
    """Tasks of one category that a round accepts."""
    per_family: int = Field(320, ge=1)
    """Tasks of one family of operators that a round accepts."""
