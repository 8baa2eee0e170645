"""Writes TOML: Python reads it and does not write it.

Invariant: what is written reads back as the same document. Numbers that are none are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, time
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, Any]) -> str:
    """`document` as TOML, its tables in the order in which they stand.

    Raises:
        ValueError: a value that is no string, number, boolean, date, time, list or table of such.
    """
    return _table(document, ()).lstrip("\n")


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> str:
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    text = "".join(f"{_key(name)} = {_value(value)}\n" for name, value in table.items() if name not in inner)
    if path and (text or not inner):
        text = f"\n[{'.'.join(map(_key, path))}]\n{text}"
    return text + "".join(_table(value, (*path, name)) for name, value in inner.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value) if re.search(r"[.e]", repr(value)) else f"{value}.0"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_value(inner)}' for name, inner in value.items())}}}"
    raise ValueError(f"TOML cannot be written of {value!r}")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
