"""The base of every configuration section."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen configuration section. An unknown key is an error; a default is the value used, always visible."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Problems(ValueError):
    """What is wrong with a section whose keys are each right by themselves. `load` lists every one of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))
