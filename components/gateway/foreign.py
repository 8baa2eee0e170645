"""JSON from outside: what a client sent, or a policy drew.

Invariant: what was read can be compared, rendered, encoded and written again. It is no deeper than `MAX_DEPTH` (where
Python's recursion and a template's end lies far beyond), its texts are Unicode and its numbers finite.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64
"""Of lists and objects in each other. The schemas of tools, the deepest that clients send, have a dozen."""


def read_json(text: str | bytes) -> Any:
    """What a text says.

    Raises:
        ValueError: it is no JSON, or none that can be worked with.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from error
    if _is_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    # JSON may spell half a surrogate pair, and Python's reads NaN: neither can be written.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for each in level for item in _items(each)]
        if not level:
            return False
    return True


def _items(value: Any) -> Any:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()
