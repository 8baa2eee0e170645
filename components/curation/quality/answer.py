"""Reads what a judge answers. Strictly: an answer is an opinion, or it is bad; nothing in it is filled in or mended.

Only the answer is read here. What the task says about itself reaches this parser in no way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.curation.quality.rubric import Dimension, HardReject
from components.errors import LongshellError

TEXT_CHARS = 600
"""Longest sentence that is kept of a judge."""


class BadAnswer(LongshellError, ValueError):
    """An answer that says nothing that can be used. In words of ours alone."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """One sample of the judge.

    Attributes:
        scores: every dimension, from 0 to 1.
        whys: one sentence each.
        rejects: the findings that it names, with where it saw them.
    """

    scores: Mapping[Dimension, float]
    whys: Mapping[Dimension, str]
    rejects: Mapping[HardReject, str]


def read_opinion(text: str) -> Opinion:
    """The opinion that an answer states.

    Raises:
        BadAnswer: it is not exactly one JSON object with every key, no other key, and values within their ranges.
    """
    document = _exactly(read_object(text), ("scores", "hard_rejects"), "the answer")
    scores = _exactly(document["scores"], tuple(Dimension), "scores")
    rejects = _exactly(document["hard_rejects"], tuple(HardReject), "hard_rejects")
    entries = {name: _exactly(scores[name], ("score", "why"), str(name)) for name in Dimension}
    return Opinion(
        {name: _score(entry["score"], name) for name, entry in entries.items()},
        {name: _text(entry["why"], f"why of {name}") for name, entry in entries.items()},
        {name: _text(rejects[name], str(name)) for name in HardReject if rejects[name] is not None},
    )


def read_object(text: str) -> Any:
    """The JSON of an answer.

    Raises:
        BadAnswer: it is not JSON alone, names a key twice, or holds a number that is none (NaN, Infinity).
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except BadAnswer:
        raise
    except (ValueError, RecursionError) as error:
        raise BadAnswer("it is not one JSON object and nothing else") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise BadAnswer("it names a key twice")
    return found


def _refuse_constant(_: str) -> float:
    raise BadAnswer("it holds a number that is none")


def _exactly(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(f"{what} must be an object")
    if missing := [name for name in names if name not in value]:
        raise BadAnswer(f"{what} lacks {', '.join(missing)}")
    if len(value) != len(names):
        raise BadAnswer(f"{what} has keys that were not asked for")
    return value


def _score(value: Any, name: Dimension) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnswer(f"the score of {name} must be a number")
    if not 0 <= value <= 1:
        raise BadAnswer(f"the score of {name} must be from 0 to 1")
    return float(value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadAnswer(f"{what} must be a sentence")
    return " ".join(value.split())[:TEXT_CHARS]
