"""The base of every configuration section."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen configuration section. A default is the value used, always visible.

    An unknown key is an error, and so is a number that is not finite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def without_credentials(url: str) -> str:
    """An address of a configuration, which is logged as a parameter of its run.

    Raises:
        ValueError: who connects, a query or a fragment is in it.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must hold no credentials, query or fragment: configurations are logged")
    return url


class Problems(ValueError):
    """What is wrong with a section whose keys are each right by themselves. `load` lists every one of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))
