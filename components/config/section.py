"""The base of every configuration section."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen configuration section. An unknown key is an error; a default is the value used, always visible."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
